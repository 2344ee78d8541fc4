//! The sub-ops of a chunk of mixture-of-experts layers, and how long a forward and a backward take next to each other.
//!
//! Expert parallelism exchanges tokens before and after the experts. A device has a stream for compute and one for communication, so
//! that the exchange of one micro-batch hides behind the computation of another: Megatron's combined 1F1B
//! (`--overlap-moe-expert-parallel-comm`), torchtitan's OVERLAP_F_B and DualPipe run a forward and a backward layer by layer, in the
//! order of [`launch`].

mod streams;
mod sub_ops;
mod table;

pub use streams::{Chunks, Half, Stream, StreamTimes, SubOp, SubOpKind, SubOpSpan, launch, run};
pub use sub_ops::{LayerOps, PassTimes, SubOps};
pub use table::{PairCosts, PairFigures, PairTime};
