"""Experiments: a recipe run on data, kept in a folder, resumed, searched over."""

from protail.experiments.from_scratch import check_photos_suffice, expectation, start_words
from protail.experiments.held_out import aside_counts, aside_data, held_out_data
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
    evaluate_stages,
    find_device,
    judge,
    load_stages,
    logits_of_test,
    plan_steps,
)
from protail.experiments.run import Run, RunError, describe_surroundings, differing_keys, is_run
from protail.experiments.search import Search, SearchResult, run_search
from protail.experiments.trials import SearchedKey, SearchTrial, is_alive, read_searched_keys

__all__ = [
    "CLASSIFIER_BACKBONE",
    "DRIVERS",
    "Job",
    "Options",
    "Pipeline",
    "Progress",
    "Run",
    "RunError",
    "Search",
    "SearchResult",
    "SearchTrial",
    "SearchedKey",
    "Stage",
    "StepPlan",
    "aside_counts",
    "aside_data",
    "check_photos_suffice",
    "choose_options",
    "cost_of",
    "data_record",
    "describe_surroundings",
    "differing_keys",
    "evaluate_heads",
    "evaluate_stages",
    "expectation",
    "find_device",
    "held_out_data",
    "is_alive",
    "is_done",
    "is_run",
    "judge",
    "load_stages",
    "logits_of_test",
    "plan_steps",
    "read_searched_keys",
    "run_jobs",
    "run_search",
    "start_words",
]
