//! The public modules of the crate: the types in public signatures, by subject.

/// Costs of ops and of what ends a step.
pub mod costs {
    pub use pipesim_answer::resolve::{Costs, Estimate, Measured};
    pub use pipesim_cost::analytic::{
        Analytic, ExpertTraffic, GpuGroup, Pass, Passes, Platform, ProductShape, StepTime,
    };
    pub use pipesim_cost::pair;
    pub use pipesim_cost::{
        CollectiveCosts, Contention, CostError, CostFile, CostTable, Decimal, EndCost, Extras, GivenCosts, GroupRates,
        LayerCost, LinkCost, MachineEffects, OpTime, PartCost, Per, SharedPuts, SliceCosts, Slow, Slowdown, StageCost,
        StageKindCost, StageTimes, StepCosts, StepRates, Summary, TickUnits, TimeUnit, VocabularyCosts,
    };
    pub use pipesim_schedule::epilogue::{GradientSync, StepEpilogue, StepNode, StepOp};
    pub use pipesim_schedule::mesh::{Coordinate, Mesh};
}

/// Runs of other programs, from their profilers' traces.
#[cfg(feature = "pictures")]
pub mod imports {
    pub use crate::import;
    pub use pipesim_import::{Count, ImportError, ImportOptions, LabelRule, RankClock, Run};
}

/// Models, hardware and layouts, and the memory and time that they take.
pub mod models {
    pub use pipesim_answer::model_prediction::{ModelPrediction, model_costs};
    pub use pipesim_answer::step_estimate::StepEstimate;
    pub use pipesim_answer::step_estimate::{OutOfMemory, Suggestion};
    pub use pipesim_models::hardware::{
        Error as HardwareError, Field, Files, Hardware, IntervalClass, STACKS, Stack, hardware, hardware_file,
        hardware_with, names as hardware_names, stack, stack_with,
    };
    pub use pipesim_models::hull::{GROUPS as HULL_GROUPS, Hull, HullPoint};
    pub use pipesim_models::layout::{
        Attention, CudaGraph, Dispatcher, ParallelConfig, ParallelConfigError, Precision, Recompute, RecomputePart,
        RecomputeParts, Routing, StepOptions, Zero, micro_batches,
    };
    pub use pipesim_models::memory::{DeviceMemory, Memory, MemoryModel, MixtureMemory, SavedActivations};
    pub use pipesim_models::model_spec::gpt2::Config as Gpt2Config;
    pub use pipesim_models::model_spec::transformer::{
        Activation, ActivationFunction, Biases, Config as TransformerConfig, Norms, QkNorm, Rotary, RotaryScaling,
        Style, TensorRanksError,
    };
    pub use pipesim_models::model_spec::{
        BLOCK, Block, Degrees, EMBEDDING, Experts, HEAD, Initial, InvalidSizes, Latent, LayoutError, MIXTURE,
        MicroBatch, ModelSpec, Operation, Outline, PREDICTION, Part, Split, SplitError, Stage, StageLayout,
        StagePieces, Storage, Tensor, TiedSides, WINDOW_BLOCK, WINDOW_MIXTURE, Window,
        huggingface::{ConfigError, Described as HuggingFaceModel, read as read_huggingface},
        model_spec, names as model_names,
        shape::read as read_shape,
        transformer_named,
    };
    pub use pipesim_sim::balance::Balanced;

    /// Reads the file of training software at `path` with this `text`, as [`hardware_file`] does.
    ///
    /// # Errors
    /// As [`hardware_file`], or an unknown schedule.
    pub fn stack_file(path: &str, text: &str, files: Files<'_>) -> Result<Stack, HardwareError> {
        pipesim_models::hardware::stack_file(path, text, files, &pipesim_language::names())
    }
}

/// The best layouts of a model on a number of GPUs.
pub mod plans {
    pub use pipesim_answer::plan::{
        Candidate, Fixed, FoundLayouts, Front, Journal, LayoutOutcome, Limits, Names, NearbyPlan, Objective, Observer,
        Plan, PlanError, PlanGroup, PlanReport, PlanShape, Plans, Preference, Question, RESERVE, RESOLUTION, Reason,
        Remedy, Risk, Search, Silent, Space, Target, Variation, flags, fronts, heat_map, plan, sensitivities, why,
    };
}

/// Predictions corrected by measured steps of the same cluster.
pub mod calibration {
    pub use pipesim_verdict::calibration::{
        Corrected, Correction, LeftOutError, MeasuredLayout, Prior, StepCalibration, is_log, logged_run, measured_runs,
    };
}

/// Questions about steps, their answers, and files of questions.
pub mod questions {
    pub use pipesim_answer::question::{
        Answer, Busy, Case, ExpertFigures, Found, LayoutFigures, MemoryCap, Observer, Predicted, Prepared, Question,
        Remark, Silent, StageSplit, VERSION, answer,
    };
}

/// Schedules: ops, placement, orders, searches and proofs, the schedule language, PyTorch's files and deliveries.
pub mod schedules {
    pub use pipesim_answer::resolve::{
        Files, Found, Host, OrderedGraph, PlatformOptions, Resolved, Selection, Variant, Warning,
    };
    pub use pipesim_language::{Budget, Error as LanguageError, ScheduleSource, Takes, names, names_of_whole};
    pub use pipesim_schedule::activation::Keep;
    pub use pipesim_schedule::csv::{
        Error as CsvError, Format as CsvFormat, Imported, MAX_BYTES as MAX_CSV_BYTES, read as read_csv,
        write as write_csv,
    };
    pub use pipesim_schedule::delivery::{ChannelOptions, Delivery, ParseDeliveryError, PyTorch, QueueCount, Receives};
    pub use pipesim_schedule::export::{dot, json};
    pub use pipesim_schedule::fsdp::{Fsdp, FsdpError, Lookahead};
    pub use pipesim_schedule::op::{Engine, Kind, Op, ParseOpError};
    pub use pipesim_schedule::open::{Goal, OpenSchedule, Order, Program};
    pub use pipesim_schedule::placement::{Chunk, Placement, PlacementError};
    pub use pipesim_schedule::schedule::{Fault, Overlap, Phase, Programs, Schedule};
    pub use pipesim_schedule::sharding::{Collective, CollectiveKind, Placed, Sharding};
    pub use pipesim_schedule::slices::SlicesError;
    pub use pipesim_sim::exact::{Error as ProofError, Proof, prove, prove_against};
    pub use pipesim_sim::ordering::{Error as SearchError, order_ops};
}

/// The task graph, petgraph's view of it, and deadlocks.
pub mod graphs {
    pub use pipesim_schedule::check::{check, fewest_slots, standard_deliveries};
    pub use pipesim_schedule::deadlock::{Awaited, Deadlock, Party, Wait};
    pub use pipesim_schedule::graph::{
        AllEdges, Besides, Dependency, Edge, Edges, Neighbors, Route, Run, TaskGraph, Until,
    };
}

/// Simulation, its figures and its explanation.
pub mod simulation {
    pub use pipesim_answer::advice::{Advice, Advisor, Change, Sensitivities, What};
    pub use pipesim_answer::explanation::{BestOrder, NamedBounds, OpSlack, StepExplanation};
    pub use pipesim_schedule::metrics::{Activity, DeviceMetrics, Metrics, Reference, TypicalSpeed};
    pub use pipesim_schedule::timeline::{
        Queue, Source, Span, StepFigures, Timeline, TimelineError, WorkerSpans, Workers,
    };
    pub use pipesim_sim::event::{
        Config, Each, EventError, Jitter, Makespans, Network, Processor, Put, Scope, Sharing,
    };
    pub use pipesim_sim::{
        Bounds, Cause, CostShare, CriticalSpan, Delay, Doing, Explanation, Held, Idle, IdleReport, IdleSpan, IdleTime,
        Interval, MemoryCurve, MemoryLevel, OffloadPlan, OffloadRefused, OpTimes, PlannedCopy, Prediction,
        PredictionFigures, Sensitivity, Setup, ShardingFigures, SlowOps, Spread, StepSpan, StreamSpan, Successive,
        WaitPiece, bounds, bounds_at_own_peaks, critical_path, explain, memory, plan_offload, predict, replay,
        sensitivities, slacks, sweep,
    };
}

/// Measured steps: what made them long, and costs for predictions of others.
pub mod measured {
    pub use pipesim_answer::explanation::{ExplainedRun, RunDiagnosis, Unexplained};
    pub use pipesim_diagnosis::{
        DeliveryFit, Error, Finding, Fit, MeasuredStep, Replay, StageTime, StepTrend, Trend, costs, findings,
        stage_times, trend,
    };
    pub use pipesim_report::Unlike;
}

/// Pictures, tables and report folders.
pub mod pictures {
    #[cfg(feature = "pictures")]
    pub use pipesim_report::{Chart, HeatMap, Plot, PlotAxis, Plots, Series, SeriesStyle};
    pub use pipesim_report::{
        Colors, Comparison, ComparisonPoint, Entry, KindError, LeftOut, Look, Palette, Panel, PictureColumn, Report,
        Table, WriteError,
    };
}

/// Training GPT-2 on CPU threads, ranks or GPUs, and comparing it with the prediction.
#[cfg(feature = "training")]
pub mod training {
    pub use pipesim_exec::link::{LINKS, LinkKind, Refusal, Setting, Transport};
    pub use pipesim_exec::ranks::{Lost, Ranks};
    pub use pipesim_exec::{
        Batch, Copies, DeviceRecord, Error as SessionError, Fault, Following, Gpus, NoFault, OpRecord, Session, State,
        StepRecord, Update,
    };
    pub use pipesim_measure::experiment::{
        Backend, Calibration, Devices, Error, Event, Experiment, Iteration, Observer, Outcome, Results, Training,
        TrainingConfig, Verdict, Work, silent,
    };
    pub use pipesim_train::model::{AdamW, Parameters, Part, PartTiming, Quantity, TensorPart, Tokenizer, Tokens};
}
