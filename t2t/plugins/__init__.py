"""Plugins: torch functions that run inside an engine as they are. Nothing lives here yet.

What TensorRT has no layer for can be a plugin (`IPluginV3`) that calls the original torch function
from inside the engine. Such a plugin needs TensorRT proper; TensorRT-RTX has no plugin layers. A
plugin made from any torch function, its serialization and its use in a converter go into this
package. Until then an operator that TensorRT cannot express is refused, by name.
"""
