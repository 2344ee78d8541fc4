//! Predictions corrected by measured steps of the same cluster.
