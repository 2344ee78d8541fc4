//! Measured steps are judged as published ones turned out.

mod calibration;
mod judgement;
