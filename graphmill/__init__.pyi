from graphmill.jobs.audit import audit as audit
from graphmill.jobs.config.config import RunConfig as RunConfig
from graphmill.jobs.diff import diff as diff
from graphmill.jobs.predict import predict as predict
from graphmill.jobs.records.run_record import read_run as read_run
from graphmill.jobs.run.evaluate import evaluate as evaluate
from graphmill.jobs.run.train import config as config
from graphmill.jobs.run.train import train as train
from graphmill.jobs.run.trained_model import TrainedModel as TrainedModel
from graphmill.jobs.run.trained_model import load_model as load_model
from graphmill.jobs.verify import verify as verify
from graphmill.samplers.access.typed_router import typed_router as typed_router
from graphmill.samplers.access.typed_router import whole_router as router  # noqa: F401
from graphmill.storage.graph import open_graph as open_graph
from graphmill.storage.graph_sets.graph_set import open_graphs as open_graphs
from graphmill.storage.importers import ingest as ingest
from graphmill.storage.importers.memory.array_graph import ArrayGraph as ArrayGraph
from graphmill.storage.importers.memory.graph_list import ingest_graphs as ingest_graphs
from graphmill.storage.importers.tables.triples import knowledge_graph as knowledge_graph
from graphmill.storage.ingestion.ingest import IngestOptions as IngestOptions
from graphmill.storage.splits.split_options import SplitOptions as SplitOptions

from . import models as models
from . import samplers as samplers

COMMANDS: dict[str, str]
__version__: str

def main() -> None: ...
