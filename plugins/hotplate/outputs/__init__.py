"""A cache of model outputs, with rules for what must never be cached."""

from hotplate.outputs.cache import OutputCache, Scored
from hotplate.outputs.errors import OutputError
from hotplate.outputs.explained import OutputExplanation
from hotplate.outputs.families import FamilyStats
from hotplate.outputs.inputs import InputField, InputSchema
from hotplate.outputs.models import Model, from_onnx, from_sklearn, from_xgboost
from hotplate.outputs.policy import OutputPolicy
from hotplate.outputs.rules import Rule

__all__ = [
    "FamilyStats",
    "InputField",
    "InputSchema",
    "Model",
    "OutputCache",
    "OutputError",
    "OutputExplanation",
    "OutputPolicy",
    "Rule",
    "Scored",
    "from_onnx",
    "from_sklearn",
    "from_xgboost",
]
