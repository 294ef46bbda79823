"""Sources made of several sources: one after the other, side by side, or mixed.

concat_source   `ConcatSource`: sources one after the other
zip_source      `ZipSource`: the items of several sources side by side
mix_source      `MixSource`: several sources in given proportions
source_parts    `SourcePart`: one of the sources that are joined
joined_source   the base of `concat` and `mix` where all parts are map-style
joined_stream   the same where a part is a stream
mix_order       the order of an epoch of a mix
mix_schedule    which part a mix takes each item from
stream_turns    which part comes next where parts are streams
"""

from stagepipe.sources.joined.concat_source import ConcatSource
from stagepipe.sources.joined.mix_source import MixSource
from stagepipe.sources.joined.zip_source import ZipSource

__all__ = ["ConcatSource", "MixSource", "ZipSource"]
