"""Experiments: a recipe run on data, kept in a folder, resumed, searched over."""

from protail.experiments.data_sets import (
    check_photos_suffice,
    check_test_images,
    data_words,
    expectation,
    feature_words,
    held_out_data,
    load_data,
    load_recorded,
    start_words,
    suited_data,
    validation_counts,
    validation_data,
)
from protail.experiments.jobs import (
    Job,
    Progress,
    data_record,
    is_done,
    run_jobs,
    scores_by_row,
    scores_table,
)
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

__all__ = [
    "CLASSIFIER_BACKBONE", "DRIVERS", "Job", "Options", "Pipeline", "Progress", "Run", "RunError",
    "Search", "SearchResult", "SearchTrial", "SearchedKey", "Stage", "StepPlan",
    "check_photos_suffice", "check_test_images", "choose_options", "cost_of", "data_record",
    "data_words", "describe_surroundings", "differing_keys", "evaluate_heads", "evaluate_logits",
    "evaluate_stages", "expectation", "feature_words", "find_device", "held_out_data", "is_alive",
    "is_done", "is_run", "load_data", "load_recorded", "load_stages", "logits_of_test",
    "plan_steps", "read_searched_keys", "run_jobs", "run_search", "scores_by_row", "scores_table",
    "start_words", "suited_data", "validation_counts", "validation_data",
]  # fmt: skip
