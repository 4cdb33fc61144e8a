"""Trains SpecForge's EAGLE-3 drafter from a store, by the configuration of a run over files.

usage: specforge_losses.py RUN.JSON STORE VOCABULARY

The run is the one that ``specforge train -c RUN.JSON`` makes, but that the features come from
hsstore's feature store; VOCABULARY is the map that the other run derived from its files. Prints
what SpecForge logs.
"""

import os
import sys

from accelerate.utils import set_seed
from specforge.application import resolve_run
from specforge.cli import _bootstrap_single_process_env
from specforge.config import load_config
from specforge.distributed import destroy_distributed, init_distributed
from specforge.launch import build_disagg_offline_runtime
from specforge.runtime.contracts import SampleRef
from specforge.training.assembly import _common_launch_kwargs, build_model_bundle

from hsstore.interop.specforge_features import StoreFeatures


def by_file_name(ref: SampleRef) -> str:
    """SpecForge sorts the names of files, in which 10 comes before 2."""
    return f"data_{ref.metadata['sample']}.ckpt"


def main(run: str, store: str, vocabulary: str) -> None:
    config = load_config(run, [f"model.vocab_mapping_path={vocabulary}"])
    algorithm, training = resolve_run(config).algorithm, config.training
    # As SpecForge's own command does it.
    os.environ["FSDP_SHARDING"] = training.fsdp_sharding
    set_seed(training.seed)
    _bootstrap_single_process_env()
    init_distributed(timeout=training.dist_timeout, tp_size=1, sp_ulysses_size=1, sp_ring_size=1)
    try:
        models = build_model_bundle(config, algorithm=algorithm)
        features = StoreFeatures(store, verify="always")
        refs = features.refs(
            run_id=config.run_id, ttt_length=training.ttt_length, max_len=config.data.max_length
        )
        trainer = build_disagg_offline_runtime(
            feature_store=features,
            refs=sorted(refs, key=by_file_name),
            draft_model=models.model,
            target_head=models.target_head,
            ttt_length=training.ttt_length,
            max_len=config.data.max_length,
            num_epochs=training.num_epochs,
            seed=training.seed,
            **_common_launch_kwargs(config, models, algorithm),
        )
        trainer.fit()
    finally:
        destroy_distributed()


if __name__ == "__main__":
    main(*sys.argv[1:])
