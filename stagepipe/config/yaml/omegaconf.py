"""Resolves the interpolations of an OmegaConf object after the overrides are applied. Pure.

So an override of a variable reaches every value that refers to it. OmegaConf resolves what it knows; the rest, such as
stagepipe's `${env:NAME}`, is left for `references`. Runs in the process that loads the config.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from typing import Any

from stagepipe.config.yaml.nodes import ListNode, MapEntry, MapNode, Node, from_plain, to_plain


def is_omegaconf(source: object) -> bool:
    """Return whether `source` is a config of OmegaConf, without importing OmegaConf."""
    omegaconf = sys.modules.get("omegaconf")
    return omegaconf is not None and omegaconf.OmegaConf.is_config(source)


class OmegaConfResolver:
    """Resolves the interpolations of one OmegaConf object.

    The object may be part of a larger one, such as Hydra's, and refer to values outside itself.
    """

    def __init__(self, source: Any) -> None:
        """`source` is not modified."""
        import omegaconf

        self._omegaconf = omegaconf.OmegaConf
        self._resolution_error = omegaconf.errors.OmegaConfBaseException
        self._source = source
        self.unresolved_values = self._omegaconf.to_container(source, resolve=False)

    def resolve(self, root: MapNode) -> MapNode:
        """Return `root` (`unresolved_values` plus overrides) with every interpolation resolved that OmegaConf knows."""
        resolved: MapNode = self._resolve_children(root, self._update_source(to_plain(root)))
        return resolved

    def _update_source(self, values: Any) -> Any:
        """Return a copy of the OmegaConf object with new values, inside a copy of its parent config."""
        key = self._source._get_full_key(None)  # noqa: SLF001 - the only way to get a node's path; Hydra uses it too
        if not key:
            return self._omegaconf.create(values, flags={"allow_objects": True})
        parent_config = copy.deepcopy(self._source._get_root())  # noqa: SLF001 - likewise
        self._omegaconf.set_readonly(parent_config, value=False)
        updated = self._omegaconf.create(values, flags={"allow_objects": True})
        self._omegaconf.update(parent_config, key, updated, merge=False)
        return self._omegaconf.select(parent_config, key)

    def _resolve_children(self, node: Any, conf: Any) -> Any:
        if isinstance(node, MapNode):
            entries = {
                k: MapEntry(e.key_location, self._resolve_child(e.node, conf, k)) for k, e in node.entries.items()
            }
            return replace(node, entries=entries)
        return replace(
            node, items=tuple(self._resolve_child(item, conf, index) for index, item in enumerate(node.items))
        )

    def _resolve_child(self, node: Node, conf: Any, key: Any) -> Node:
        if isinstance(node, MapNode | ListNode):
            return self._resolve_children(node, conf[key])  # type: ignore[no-any-return]
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        try:
            value = conf[key]
            if self._omegaconf.is_config(value):
                value = self._omegaconf.to_container(value, resolve=True)
        except self._resolution_error:
            return node
        return from_plain(value, node.location)
