//! One question and its answer: how long a step of a schedule or a model takes, and what memory it needs.
//!
//! A [`Question`] is plain data: schedules, numbers of devices and micro-batches, costs or a model on hardware, and the machine. Each setting is
//! called as the option of the command line. [`answer`] gives typed numbers for every schedule and layout; the command line, its suggestions
//! and the crate's own functions use it. [`Question::from_toml`] and [`Question::to_toml`] keep a question in a file.
//!
//! ```
//! use pipesim_answer::question::{Question, answer};
//!
//! let question = Question::from_toml("version = 1\nschedule = [\"1f1b\", \"zb-v\"]\nstages = [4]\nmicro = [8]\n")?;
//! let answer = answer(&question, &pipesim_answer::resolve::Files)?;
//! assert_eq!(answer.predictions[1].figures.metrics.makespan, 25.5);
//! # Ok::<(), pipesim_answer::resolve::Error>(())
//! ```

mod answer;
mod case;
mod file;
mod layouts;
mod memory_cap;
mod objective;
mod observer;
mod remark;
mod schedules;
mod settings;
mod sources;
mod text;

pub use answer::{Answer, ExpertFigures, Found, LayoutFigures, Predicted, Prepared, answer};
pub use case::Case;
pub use memory_cap::MemoryCap;
pub use objective::{Objective, Risk};
pub use observer::{Busy, Observer, Silent};
pub use pipesim_models::model_spec::StageSplit;
pub use remark::Remark;
pub use schedules::DEFAULT_SCHEDULES;
pub use settings::{Question, VERSION};
pub use sources::{cost_file, given_costs, hardware, model, stack};
