//! The public modules of the crate: the types in public signatures, by subject.

/// Costs of ops and of what ends a step.
pub mod costs {
    pub use crate::cost::analytic::{Analytic, Group, Pass, Passes, Platform, Shape, StepTime, Traffic};
    pub use crate::cost::pair;
    pub use crate::cost::{
        CollectiveCosts, Contention, CostError, CostFile, CostTable, Decimal, EndCost, GivenCosts, GroupRates,
        LayerCost, LinkCost, OpTime, PartCost, Per, SharedPuts, Slow, Slowdown, StageCost, StageKindCost, StageTimes,
        StepCosts, StepRates, Summary, TimeUnit,
    };
    pub use crate::epilogue::{GradientSync, StepEpilogue, StepNode, StepOp};
    pub use crate::mesh::{Coordinate, Mesh};
    pub use crate::resolve::{Costs, Measured};
}

/// Runs of other programs, from their profilers' traces.
#[cfg(feature = "pictures")]
pub mod imports {
    pub use crate::import::{Count, ImportError, ImportOptions, LabelRule, RankClock, Run, import};
}

/// Models, hardware and layouts, and the memory and time that they take.
pub mod models {
    pub use crate::balance::Balanced;
    pub use crate::hardware::{
        Error as HardwareError, Field, Hardware, IntervalClass, Stack, hardware, hardware_file, hardware_with,
        names as hardware_names, stack, stack_file, stack_with,
    };
    pub use crate::layout::{
        Attention, CudaGraph, Dispatcher, ParallelConfig, ParallelConfigError, Precision, Recompute, RecomputePart,
        RecomputeParts, Routing, STACKS, Zero, micro_batches,
    };
    pub use crate::memory::{DeviceMemory, Memory, MemoryModel, MixtureMemory, SavedActivations};
    pub use crate::model_prediction::{ModelPrediction, model_costs};
    pub use crate::model_spec::gpt2::Config as Gpt2Config;
    pub use crate::model_spec::transformer::{
        Activation, ActivationFunction, Biases, Config as TransformerConfig, Rotary, RotaryScaling, Style,
    };
    pub use crate::model_spec::{
        BLOCK, Block, Degrees, EMBEDDING, Experts, HEAD, Initial, InvalidSizes, Latent, LayoutError, MIXTURE,
        MicroBatch, ModelSpec, Operation, Outline, PREDICTION, Part, Split, SplitError, Stage, StageLayout,
        StagePieces, Storage, Tensor, TiedSides, WINDOW_BLOCK, WINDOW_MIXTURE, Window,
        huggingface::{ConfigError, Described as HuggingFaceModel, read as read_huggingface},
        model_spec, names as model_names,
        shape::read as read_shape,
        transformer_named,
    };
    pub use crate::step_estimate::StepEstimate;
    pub use crate::step_estimate::{OutOfMemory, Suggestion};
}

/// The best layouts of a model on a number of GPUs.
pub mod plans {
    pub use crate::plan::{
        Candidate, Change, Fixed, Found, Front, Group, Journal, Limits, Names, NearbyPlan, Objective, Observer,
        Outcome, Plan, PlanError, Plans, Preference, Question, RESERVE, RESOLUTION, Reason, Search, Shape, Silent,
        Space, Target, flags, fronts, heat_map, plan, sensitivities, why,
    };
}

/// Schedules: ops, placement, orders, searches and proofs, the schedule language, PyTorch's files and deliveries.
pub mod schedules {
    pub use crate::activation::Keep;
    pub use crate::csv::{
        Error as CsvError, Format as CsvFormat, Imported, MAX_BYTES as MAX_CSV_BYTES, read as read_csv,
        write as write_csv,
    };
    pub use crate::delivery::{ChannelOptions, Delivery, ParseDeliveryError, PyTorch, QueueCount, Receives};
    pub use crate::dsl::{Budget, Error as LanguageError, ScheduleSource, Takes, names, names_of_whole};
    pub use crate::exact::{Error as ProofError, Proof, prove, prove_against};
    pub use crate::export::{dot, json};
    pub use crate::fsdp::{Fsdp, FsdpError, Lookahead};
    pub use crate::op::{Kind, Op, ParseOpError};
    pub use crate::open::{Goal, OpenSchedule, Order, Program};
    pub use crate::ordering::{Effort, Error as SearchError, order_ops, order_ops_with};
    pub use crate::placement::{Chunk, Placement, PlacementError};
    pub use crate::resolve::{
        Files, Found, Host, OrderedGraph, PlatformOptions, Resolved, Selection, Variant, Warning,
    };
    pub use crate::schedule::{Fault, Overlap, Phase, Programs, Schedule};
    pub use crate::sharding::{Collective, CollectiveKind, Placed, Sharding};
}

/// The task graph, petgraph's view of it, and deadlocks.
pub mod graphs {
    pub use crate::check::{check, check_slots, fewest_slots, standard_deliveries};
    pub use crate::communicators::{DirectedEdge, rounds as communicator_rounds};
    pub use crate::deadlock::{Awaited, Deadlock, Party, Wait};
    pub use crate::epilogue::group_member;
    pub use crate::graph::{AllEdges, Besides, Dependency, Edge, Edges, Neighbors, Route, Run, TaskGraph, Until};
}

/// Simulation, its figures and its explanation.
pub mod simulation {
    pub use crate::advice::{Advice, Advisor, Change, Sensitivities, What};
    pub use crate::explanation::StepExplanation;
    pub use crate::metrics::{Activity, DeviceMetrics, Metrics, Reference, TypicalSpeed};
    pub use crate::sim::event::{Config, Each, EventError, Jitter, Makespans, Network, Processor, Put, Scope, Sharing};
    pub use crate::sim::{
        Bounds, Cause, CostShare, CriticalSpan, Delay, Doing, Explanation, Held, Idle, IdleReport, IdleSpan, IdleTime,
        Interval, MemoryCurve, MemoryLevel, OffloadPlan, OffloadRefused, OpTimes, Piece, PlannedCopy, Prediction,
        PredictionFigures, Sensitivity, Setup, ShardingFigures, SlowOps, Spread, StepSpan, StreamSpan, Successive,
        bounds, bounds_at_own_peaks, critical_path, explain, memory, plan_offload, predict, replay, sensitivities,
        slacks, sweep,
    };
    pub use crate::timeline::{Queue, Source, Span, StepFigures, Timeline, TimelineError, WorkerSpans, Workers};
}

/// Measured steps: what made them long, and costs for predictions of others.
pub mod measured {
    pub use crate::diagnosis::{
        DeliveryFit, Error, Finding, Fit, MeasuredStep, Replay, StageTime, StepTrend, Trend, costs, findings,
        stage_times, trend,
    };
    pub use crate::report::{Unlike, compare};
}

/// Pictures, tables and report folders.
pub mod pictures {
    #[cfg(feature = "pictures")]
    pub use crate::report::{Chart, HeatMap, Plot, PlotAxis, Plots, Series, SeriesStyle};
    pub use crate::report::{
        Colors, Comparison, ComparisonPoint, Entry, KindError, LeftOut, Look, Palette, Panel, Report, Table, WriteError,
    };
}

/// Training GPT-2 on CPU threads, ranks or GPUs, and comparing it with the prediction.
#[cfg(feature = "training")]
pub mod training {
    pub use crate::exec::link::{LINKS, LinkKind, Refusal, Setting};
    pub use crate::exec::{
        Batch, Copies, DeviceRecord, Error as SessionError, Fault, Following, Gpus, NoFault, OpRecord, Session, State,
        StepRecord, Update,
    };
    pub use crate::experiment::{
        Backend, Calibration, Error, Errors, Event, Experiment, Iteration, Observer, Outcome, Results, Training,
        TrainingConfig, Verdict, Work, silent,
    };
    pub use crate::mesh::{Coordinate, Mesh};
    pub use crate::model::{AdamW, Parameters, Part, PartTiming, Quantity, TensorPart, Tokenizer, Tokens};
    pub use crate::ranks::{Lost, Ranks};
}
