//! The question that a job asks.
