//! pipesim: which pipeline schedule, and what will it really cost?
//!
//! A schedule is written once, in a small language. It compiles to one task graph. The same graph is **simulated**
//! (predicted timeline, bubble, memory) and **executed** (a real GPT-2 trained on real devices), and both give the same
//! kind of timeline, so that prediction and measurement lie on one axis and their difference is a number.
//!
//! ```text
//! schedules/*.star ─ dsl ─▶ Schedule ─▶ TaskGraph ─┬─ sim ──┬─▶ Timeline ─▶ metrics ─▶ report
//!                             costs ───────────────┘        │
//!                               ▲              └─ exec ─────┘
//!                               └── calibrate ◀──┘
//! ```
//!
//! Data flows one way, and a module uses only modules above it in the list below. `tests/language/architecture.rs` reads the `use`
//! lines and fails on any other edge:
//!
//! ```text
//! op
//! activation   op
//! metrics
//! statistics
//! deadlock     op
//! delivery
//! timeline     op activation metrics
//! placement    op
//! schedule     op activation placement
//! open        op placement schedule
//! dsl          op placement schedule open
//! csv          op placement schedule
//! graph        op deadlock placement schedule
//! lowering     op placement schedule graph delivery
//! check        graph deadlock delivery lowering
//! export       op placement schedule graph
//! cost         op placement
//! settle       op activation deadlock placement schedule open graph cost
//! sim          op activation deadlock placement schedule graph lowering delivery check cost metrics timeline statistics
//! exact        op activation placement schedule open graph cost settle sim
//! model        op
//! resolve      op deadlock placement schedule open dsl csv graph cost settle sim model
//! cuda         op model
//! ranks
//! exec         op deadlock placement schedule graph lowering delivery check cost model cuda timeline ranks
//! doctor       cuda ranks
//! report       op metrics timeline
//! experiment   op placement metrics timeline delivery graph check cost sim model resolve cuda ranks exec statistics report
//! cli          op deadlock placement metrics timeline delivery schedule open dsl csv graph check export cost settle sim exact model cuda ranks exec statistics doctor report resolve experiment
//! ```
//!
//! Invariants:
//! - A schedule never mentions communication, time or hardware: what is sent follows from placement and order.
//! - `sim` and `exec` never see each other: they are joined by data. `sim` reads no clock and no file.
//! - Time is whole ticks or nanoseconds; whatever is iterated is ordered. Same input, same bytes.
//! - What a pipeline's ops wait for is stated once, in [`op::Op::upstream`].
//! - A panic is a bug of ours; what a user can cause is an error that says what was expected, what was found and one thing to do.

pub mod activation;
pub mod check;
pub mod cli;
pub mod cost;
pub mod csv;
pub mod cuda;
pub mod deadlock;
pub mod delivery;
pub mod doctor;
pub mod dsl;
pub mod exact;
pub mod exec;
pub mod experiment;
pub mod export;
pub mod graph;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
pub mod lowering;
pub mod metrics;
pub mod model;
pub mod op;
pub mod open;
pub mod placement;
pub mod ranks;
pub mod report;
pub mod resolve;
pub mod schedule;
pub mod settle;

pub mod sim;
pub mod statistics;
pub mod timeline;
