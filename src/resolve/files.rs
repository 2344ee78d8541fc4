use super::Host;
use std::io;
#[cfg(feature = "pictures")]
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Decodes UTF-8 and strips a byte order mark.
#[cfg(feature = "pictures")]
fn text(bytes: Vec<u8>) -> io::Result<String> {
    let other = if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) { " (UTF-16?)" } else { "" };
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let row = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let what = format!("found invalid UTF-8 on line {row}{other}; save it as UTF-8");
        io::Error::new(io::ErrorKind::InvalidData, what)
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_string).unwrap_or(text))
}

/// Returns whether it is a device other than a terminal, such as `/dev/zero` or a disk.
#[cfg(all(feature = "pictures", unix))]
fn is_device(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    const TERMINALS: std::ops::RangeInclusive<u64> = 136..=143; // major numbers of Unix98 terminals on Linux
    let kind = metadata.file_type();
    kind.is_block_device() || (kind.is_char_device() && !TERMINALS.contains(&(metadata.rdev() >> 8 & 0xfff)))
}

#[cfg(all(feature = "pictures", not(unix)))]
fn is_device(_: &std::fs::Metadata) -> bool {
    false
}

/// A [`Host`] that reads files and uses all cores. Without the feature `pictures` it does neither.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files;

impl Host for Files {
    #[cfg(feature = "pictures")]
    fn read(&self, path: &str, limit: u64) -> io::Result<Option<String>> {
        let metadata = std::fs::metadata(path)?;
        if metadata.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "found a folder; name a file in it"));
        }
        if is_device(&metadata) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "found a device, which may never end; name a file",
            ));
        }
        if metadata.is_file() && metadata.len() > limit {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?; // a pipe has no length
        if bytes.len() as u64 > limit { Ok(None) } else { text(bytes).map(Some) }
    }

    #[cfg(feature = "pictures")]
    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let some = || {
            while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&number| number < count) {
                work(number);
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            // If the system refuses threads, the existing ones do all the work.
            (1..cores.min(count)).for_each(|_| drop(std::thread::Builder::new().spawn_scoped(scope, some)));
            some();
        });
    }
}
