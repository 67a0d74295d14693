"""An actor from its start to its end."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import ray

from gpupipe.config import RayConfig
from gpupipe.engines.ray.arrays import unpack
from gpupipe.engines.ray.cluster import connect
from gpupipe.engines.ray.messages import PlanTask
from gpupipe.engines.ray.pool_worker import PoolWorker, create_actor, end_actors
from gpupipe.engines.ray.sharing import share_job
from gpupipe.engines.ray.versions import list_versions
from helpers.batch_makers import maker, plan
from helpers.ray_cluster import RayCluster


def test_it_describes_itself_builds_its_engine_answers_and_ends(
    cluster: RayCluster, faces: Path
) -> None:
    trainer = connect("auto")
    with maker(faces) as (ours, job):
        shared = share_job(job)
        actor = create_actor(trainer, RayConfig(cpus=1, placement="local_first"), shared)
        facts = ray.get(actor.describe.remote())
        assert facts.node_id == trainer.node_id, "its node is the trainer's"
        assert facts.pid != os.getpid()
        assert facts.versions == list_versions()
        built = ray.get(actor.build.remote(shared.key, [shared.ref], "cpu", "cpu", shared.paths))
        assert (built.engine, built.error, built.missing) == ("cpu", None, ())
        worker = PoolWorker(actor, facts, built.engine)
        task = PlanTask(shared.key, 0, 0, 0, np.array([3, 1]), False)
        _, answer = worker.send(task)
        fields = answer.result(60).fields
        assert np.array_equal(unpack(fields["image"]).numpy(), ours.make(plan(3, 1))["image"])
    del answer, fields, shared
    end_actors([actor])
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.describe.remote())
    trainer.close()
