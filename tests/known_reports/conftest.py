"""The model that the requests of these tests name."""

from tests.unit.serve.conftest import model as model
