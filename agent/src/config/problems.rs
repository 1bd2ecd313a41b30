//! What is wrong with a configuration, gathered: one start says it all.

use super::ConfigError;

/// Problems, in the order in which they were found.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    found: Vec<ConfigError>,
}

impl Problems {
    /// A value that cannot be.
    pub(crate) fn refuse(&mut self, field: &'static str, value: impl ToString, reason: impl Into<String>) {
        self.found.push(ConfigError::Value { field, value: value.to_string(), reason: reason.into() });
    }

    /// What a part that stops at its first problem says.
    pub(crate) fn take(&mut self, checked: Result<(), (&'static str, String, String)>) {
        if let Err((field, value, reason)) = checked {
            self.refuse(field, value, reason);
        }
    }

    /// All of them as one error.
    pub(crate) fn done(mut self) -> Result<(), ConfigError> {
        match self.found.len() {
            0 => Ok(()),
            1 => Err(self.found.remove(0)),
            _ => Err(ConfigError::Several(self.found)),
        }
    }
}
