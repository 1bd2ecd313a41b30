//! The context `dev`, saved while the federation runs if the caller asks for it.

use std::path::Path;

use comity_runtime::IdentityDir;
use comity_runtime::contexts::{ContextError, Contexts};

use super::federation::Federation;
use super::inventories::ORIGIN;
use crate::commands::context::{check_replaceable, context_failure};
use crate::failure::Failure;

/// Its name.
pub(super) const NAME: &str = "dev";

/// Removes the context when dropped, and makes the former one current again.
pub(super) struct DevContext {
    contexts: Contexts,
    current_before: Option<String>,
}

impl DevContext {
    /// Saves the context: alice, the brokers and the origin's agent. The current context stays.
    pub(super) fn save(contexts: &Contexts, federation: &Federation) -> Result<Self, Failure> {
        let (pem, identity) =
            IdentityDir::new(&federation.alice).load().map_err(|error| Failure::configuration(error.to_string()))?;
        // What a killed run left is of the same alice.
        check_replaceable(contexts, NAME, identity.id())?;
        let save = || -> Result<_, ContextError> {
            contexts.save(NAME, federation.endpoints(), &pem)?;
            if let Some(socket) = federation.agent_socket(ORIGIN) {
                contexts.set_agent(NAME, &socket)?;
            }
            contexts.current()
        };
        let current_before = save().map_err(|error| context_failure(&error))?;
        Ok(Self { contexts: contexts.clone(), current_before })
    }
}

impl Drop for DevContext {
    fn drop(&mut self) {
        let current_now = self.contexts.current().ok().flatten();
        // The next `comity dev --add-context` replaces a context that cannot be removed.
        let _ = self.contexts.remove(NAME);
        if let Some(before) = &self.current_before
            && current_now.as_deref() == Some(NAME)
            && before != NAME
        {
            let _ = self.contexts.set_current(before);
        }
    }
}

/// The lines that select this federation in a shell.
pub(super) fn selection(federation: &Federation, socket: &Path, context: Option<&DevContext>) -> String {
    let (brokers, alice, socket) = (federation.endpoints(), federation.alice.display(), socket.display());
    match context {
        Some(_) => format!("  export COMITY_CONTEXT={NAME}      # or: comity context use {NAME}\n"),
        None => format!(
            "  export COMITY_BROKER={brokers}\n  export COMITY_IDENTITY={alice:?}\n  export COMITY_AGENT={socket:?}\n"
        ),
    }
}
