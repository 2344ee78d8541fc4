//! Who follows an answer in the making.

use super::remark::Remark;

/// Follows an answer in the making. The defaults do nothing.
pub trait Observer {
    /// Notes something about the question or its answer.
    fn remark(&self, remark: &Remark) {
        let _ = remark;
    }

    /// Called when the work `what` begins; `of` is its number of pieces and their kind, if known. The work ends when the returned value is
    /// dropped.
    fn busy(&self, what: &str, of: Option<(u64, &'static str)>) -> Box<dyn Busy> {
        let _ = (what, of);
        Box::new(Silent)
    }
}

/// Work that is under way.
pub trait Busy: Sync {
    /// Counts one more piece as done.
    fn done(&self) {}
}

/// An [`Observer`] that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

impl Busy for Silent {}
