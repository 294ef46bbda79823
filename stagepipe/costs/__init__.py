"""What it costs to carry a message over a hop on this machine, and the transport that a hop uses. Starts nothing.

curves          cost by message size, as lines between measured points
negotiator      chooses pipe or shared memory from the curves, with the reason
adaptive        corrects the curves and a hop's rule from what its messages really cost
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.costs.adaptive import (
        MIN_MESSAGES_FOR_MEDIAN,
        CostMeasurement,
        HopCostEstimate,
        TransportRuleChange,
        predict_hop_cost,
        revise_rule,
        summarize_ledgers,
    )
    from stagepipe.costs.curves import MADE_UP_CURVES, CostCurve, CostCurves
    from stagepipe.costs.negotiator import (
        PayloadBuffer,
        TransferDecision,
        decide_transfer,
        negotiate,
    )

__all__ = [
    "MADE_UP_CURVES",
    "MIN_MESSAGES_FOR_MEDIAN",
    "CostCurve",
    "CostCurves",
    "CostMeasurement",
    "HopCostEstimate",
    "PayloadBuffer",
    "TransferDecision",
    "TransportRuleChange",
    "decide_transfer",
    "negotiate",
    "predict_hop_cost",
    "revise_rule",
    "summarize_ledgers",
]

__getattr__ = lazy_names(
    __name__,
    {
        "MADE_UP_CURVES": "curves",
        "CostCurve": "curves",
        "CostCurves": "curves",
        "CostMeasurement": "adaptive",
        "HopCostEstimate": "adaptive",
        "MIN_MESSAGES_FOR_MEDIAN": "adaptive",
        "PayloadBuffer": "negotiator",
        "TransferDecision": "negotiator",
        "TransportRuleChange": "adaptive",
        "decide_transfer": "negotiator",
        "negotiate": "negotiator",
        "predict_hop_cost": "adaptive",
        "revise_rule": "adaptive",
        "summarize_ledgers": "adaptive",
    },
)
