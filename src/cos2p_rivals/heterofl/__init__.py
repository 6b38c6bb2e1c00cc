"""HeteroFL: every dimension is cut. FedRolex's official form uses the same parts.

`cut` says where a device's tensors lie in the full model, `device` trains them, `merge` averages them scalar by scalar,
`method` gives each device the leading part.
"""

from cos2p_rivals.heterofl.method import HeteroFl

__all__ = ["HeteroFl"]
