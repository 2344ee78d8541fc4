//! A measured step against its prediction.
