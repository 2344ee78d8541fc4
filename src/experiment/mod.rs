//! What is trained and measured: sessions, calibration, comparison of prediction and measurement, provenance.

pub mod calibrate;
pub mod compare;
pub mod outcome;
pub mod provenance;
pub mod training;
