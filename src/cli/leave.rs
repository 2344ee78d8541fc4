//! The end of the process.

/// Ends the process; what is printed is flushed before by whoever may wait for that. Where a library of NVIDIA's was opened, without the handlers of an ordinary exit: they take the library down
/// while threads may still be in it.
pub fn leave(code: u8) -> ! {
    #[cfg(feature = "cuda")]
    if crate::cuda::library::is_any_open() {
        signal_hook::low_level::exit(i32::from(code));
    }
    std::process::exit(i32::from(code))
}
