"""Experiments: a recipe run on data, kept in a folder, resumed, searched over."""

from protail.experiments.data_sets import (
    check_photos_suffice,
    check_test_images,
    expectation,
    load_data,
    load_recorded,
    start_words,
)
from protail.experiments.held_out import held_out_data, validation_counts, validation_data
from protail.experiments.jobs import Job, Progress, data_record, is_done, run_jobs
from protail.experiments.pipeline import (
    CLASSIFIER_BACKBONE,
    DRIVERS,
    Options,
    Pipeline,
    Stage,
    StepPlan,
    choose_options,
    cost_of,
    evaluate_heads,
    evaluate_logits,
    evaluate_stages,
    find_device,
    load_stages,
    logits_of_test,
    plan_steps,
)
from protail.experiments.run import Run, RunError, describe_surroundings, differing_keys, is_run
from protail.experiments.search import Search, SearchResult, run_search
from protail.experiments.trials import SearchedKey, SearchTrial, is_alive, read_searched_keys

__all__ = ["check_photos_suffice", "check_test_images", "expectation", "load_data"]
__all__ += ["held_out_data", "load_recorded", "start_words", "validation_counts", "validation_data"]
__all__ += ["Job", "Progress", "data_record", "is_done", "run_jobs"]
__all__ += ["CLASSIFIER_BACKBONE", "DRIVERS", "Options", "Pipeline", "Stage", "StepPlan"]
__all__ += ["choose_options", "cost_of", "evaluate_heads", "evaluate_logits", "evaluate_stages"]
__all__ += ["find_device", "load_stages", "logits_of_test", "plan_steps"]
__all__ += ["Run", "RunError", "describe_surroundings", "differing_keys", "is_run"]
__all__ += ["Search", "SearchResult", "run_search"]
__all__ += ["SearchTrial", "SearchedKey", "is_alive", "read_searched_keys"]
