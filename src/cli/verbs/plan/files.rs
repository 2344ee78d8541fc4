//! Plans in files: pages, pictures and data.

use super::shown::Shown;
use crate::cli::Failure;
use crate::cli::options::output::OneFile;
use crate::cli::terminal::progress::RemarkOptions;
use pipesim_answer::plan::Observer;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const ENDINGS: [&str; 6] = [".html", ".svg", ".png", ".pdf", ".json", ".csv"];

/// The files that a verb writes.
pub struct Files(Vec<(PathBuf, OneFile)>);

impl Files {
    /// Checks, before any work, that all can be written.
    pub fn new(paths: &[PathBuf]) -> Result<Files, Failure> {
        let distinct: BTreeSet<&PathBuf> = paths.iter().collect();
        if distinct.len() < paths.len() {
            return Err(Failure::usage("expected different outputs, found one -o twice; leave one out"));
        }
        let one = |path: &PathBuf| {
            let is_known = ENDINGS.iter().any(|ending| path.to_string_lossy().to_lowercase().ends_with(ending));
            if !is_known && path.as_os_str() != "-" {
                let known = ENDINGS.join(" ");
                let found = path.display();
                return Err(Failure::Usage(format!(
                    "expected -o with a name that ends in one of {known}, found '{found}'; use such a name"
                )));
            }
            Ok((path.clone(), OneFile::at(Some(path), &ENDINGS)?))
        };
        Ok(Files(paths.iter().map(one).collect::<Result<_, Failure>>()?))
    }

    /// Writes the files. Pictures, which take further searches, are left out once `observer` is stopped.
    pub fn write(&self, shown: &Shown<'_>, remarks: RemarkOptions, observer: &dyn Observer) -> Result<(), Failure> {
        let answer = &shown.answer;
        let is_drawn =
            |path: &Path| path.extension().is_some_and(|ending| !["json", "csv"].iter().any(|e| ending == *e));
        let draws = !observer.is_stopped() && self.0.iter().any(|(path, _)| is_drawn(path));
        let plots = draws.then(|| {
            let _busy = remarks.busy("drawing", None);
            answer.plots(observer)
        });
        let plots = plots.filter(|_| !observer.is_stopped());
        for (path, file) in self.0.iter().filter(|(path, _)| path.as_os_str() != "-") {
            let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
            let bytes = match (ending.as_str(), &plots) {
                ("json", _) => shown.json()?.into_bytes(),
                ("csv", _) => answer.csv().into_bytes(),
                ("html", Some(plots)) => answer.html(&plots.svg()?).into_bytes(),
                ("png", Some(plots)) => plots.png()?,
                ("pdf", Some(plots)) => plots.pdf()?,
                (_, Some(plots)) => plots.svg()?.into_bytes(),
                // stopped
                (_, None) => continue,
            };
            file.write(bytes, remarks, |_| String::new())?;
        }
        Ok(())
    }
}
