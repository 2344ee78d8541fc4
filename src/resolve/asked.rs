use super::order::schedule_file;
use super::variant::memory_cap;
use super::{Error, Selection, Variant};
use crate::dsl::{self, Request, Takes};
use std::collections::BTreeMap;

impl Selection {
    /// Returns which of chunks and options the schedule of a variant accepts.
    ///
    /// # Errors
    /// An unknown or invalid schedule.
    pub fn takes(&self, variant: &Variant) -> Result<Takes, Error> {
        if variant.is_auto() {
            return Ok(Takes { options: vec!["v".to_string(), "cap".to_string()], chunks: true });
        }
        if variant.is_csv() {
            return Ok(Takes::default());
        }
        let file = schedule_file(self.host, &variant.base)?;
        let Selection { devices, microbatches, budget, .. } = *self;
        let request = Request { devices, microbatches, chunks: None, options: BTreeMap::new(), budget };
        let _watch = self.host.watch(&file.file, budget, 0);
        Ok(dsl::takes(&file, &request)?)
    }

    /// Returns the selection for `variant`: its own options in addition to the common ones.
    ///
    /// # Errors
    /// An option that both set.
    pub(super) fn of(&self, variant: &Variant) -> Result<Selection, Error> {
        let mut own = self.clone();
        if self.lenient && (self.chunks.is_some() || !self.options.is_empty()) {
            let takes = self.takes(variant)?;
            own.chunks = own.chunks.filter(|_| takes.chunks);
            own.options.retain(|key, _| takes.options.contains(key));
        }
        for (key, value) in &variant.options {
            let both = match key.as_str() {
                "v" if own.chunks.is_some_and(|chunks| chunks.to_string() != *value) => Some("--chunks"),
                "cap" if variant.is_auto() && own.memory_cap.is_some() => Some("--memory-cap"),
                _ if own.options.contains_key(key) => Some("--set"),
                _ => None,
            };
            if let Some(flag) = both {
                return Err(Error::Usage(format!(
                    "{flag} and {variant} both say what {key} is; leave one of the two out"
                )));
            }
        }
        own.options.extend(variant.options.clone());
        if variant.options.contains_key("v") || variant.is_auto() {
            let v = own.options.remove("v").map(|text| dsl::chunks_asked(&text)).transpose()?;
            own.chunks = v.or(own.chunks);
        }
        if variant.is_auto()
            && let Some(text) = own.options.remove("cap")
        {
            let cap = memory_cap(&text).map_err(|why| Error::Usage(format!("{variant}: cap = {text}: {why}")))?;
            own.memory_cap = Some(cap);
        }
        Ok(own)
    }
}
