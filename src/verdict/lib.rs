//! Is a step as fast as it should be: a job and its measured times in, a verdict out.

pub mod asked;
pub mod calibration;
pub mod choice;
pub mod cluster;
pub mod figures;
pub mod headline;
pub mod judgement;
pub mod layouts;
pub mod prediction;
pub mod standing;
