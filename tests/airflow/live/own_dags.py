"""DAGs that a user writes: a single sensor, and a job that starts when the sink of another job changes.

Copied to the folder of DAG files.
"""

from airflow.sdk import DAG

from headrace.airflow import HeadraceCheckpointSensor, HeadraceRunOperator, sink_asset
from headrace.config import home_folder, load_job

with DAG("sensor", schedule=None, is_paused_upon_creation=False):
    HeadraceCheckpointSensor(task_id="wait", job="days", interval_end="{{ params.until }}", poke_interval=2)

board = load_job("board", home_folder()).sinks["lines_by_item"]
with DAG("chain", schedule=[sink_asset("board", "lines_by_item", board.path)], is_paused_upon_creation=False):
    HeadraceRunOperator(task_id="run", job="follower", hold_after_failure=True)
