"""A task of the cluster that TF_CONFIG describes. It keeps its GPU until its input ends, like a long training.

Usage: ``task.py toyflow``, or with TensorFlow ``task.py all_reduce`` or ``task.py parameter_server``.
"""

import json
import os
import sys

from taking import take


def toyflow():
    return {"gpus": len(take(0.1))}


def all_reduce():
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        counter = tf.Variable(0.0)

    @tf.function
    def step():
        strategy.run(lambda: counter.assign_add(1.0))
        return counter.value()

    step()
    return {"replicas": strategy.num_replicas_in_sync}


def parameter_server():
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        place = {"job_name": resolver.task_type, "task_index": resolver.task_id, "protocol": "grpc"}
        return {"server": str(tf.distribute.Server(resolver.cluster_spec(), **place))}
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variable = tf.Variable(1.0)

    @tf.function
    def step():
        return tf.reduce_sum(tf.random.uniform((64, 64))) * 0 + variable

    done = [coordinator.schedule(step) for _ in range(4)]
    coordinator.join()
    return {"sum": sum(float(each.fetch()) for each in done)}


print(json.dumps({"pid": os.getpid(), **globals()[sys.argv[1]]()}), flush=True)
sys.stdin.read()
if sys.argv[1] == "parameter_server":
    # A server never ends, and a chief waits at its exit for answers of servers that may have ended.
    os._exit(0)
