"""An OmegaConf object's own interpolations, put in by OmegaConf once overrides are laid over it. Pure.

So an override of a variable reaches what refers to it. What OmegaConf cannot resolve (`${env:NAME}`, which is ours) is
left for `references`.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from typing import Any

from stagepipe.config.nodes import Entry, List, Map, Node, from_plain, plain


def is_omegaconf(source: object) -> bool:
    """Whether `source` is a config of OmegaConf; it is not imported to find that out."""
    omegaconf = sys.modules.get("omegaconf")
    return omegaconf is not None and omegaconf.OmegaConf.is_config(source)


class Interpolations:
    """Those of one OmegaConf object, which may be a part of a larger one (Hydra's) and refer to what is outside it."""

    def __init__(self, source: Any) -> None:
        """`source` is left as it is."""
        import omegaconf

        self._conf, self._failed = omegaconf.OmegaConf, omegaconf.errors.OmegaConfBaseException
        self._source = source
        self.unresolved = self._conf.to_container(source, resolve=False)

    def put_in(self, root: Map) -> Map:
        """`root` (what `unresolved` has become) with the interpolations that OmegaConf knows put in."""
        resolved: Map = self._inside(root, self._updated(plain(root)))
        return resolved

    def _updated(self, values: Any) -> Any:
        """The OmegaConf object with other values, at its place in what it is a part of."""
        key = self._source._get_full_key(None)  # noqa: SLF001 - the only way to a node's place; used by Hydra as well
        if not key:
            return self._conf.create(values, flags={"allow_objects": True})
        whole = copy.deepcopy(self._source._get_root())  # noqa: SLF001 - likewise
        self._conf.set_readonly(whole, value=False)
        self._conf.update(whole, key, self._conf.create(values, flags={"allow_objects": True}), merge=False)
        return self._conf.select(whole, key)

    def _inside(self, node: Any, conf: Any) -> Any:
        if isinstance(node, Map):
            entries = {k: Entry(e.key_place, self._at(e.node, conf, k)) for k, e in node.entries.items()}
            return replace(node, entries=entries)
        return replace(node, items=tuple(self._at(item, conf, at) for at, item in enumerate(node.items)))

    def _at(self, node: Node, conf: Any, key: Any) -> Node:
        if isinstance(node, Map | List):
            return self._inside(node, conf[key])  # type: ignore[no-any-return]
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        try:
            value = conf[key]
            if self._conf.is_config(value):
                value = self._conf.to_container(value, resolve=True)
        except self._failed:
            return node
        return from_plain(value, node.place)
