//! Hands the first admin's identity to the command line: as a context of the person who ran `comity-broker up`.

use std::fs;
use std::path::{Path, PathBuf};

use comity_runtime::contexts::{CliContext, ContextError, Contexts};
use comity_runtime::identity::{IdentityDir, IdentityError};
use comity_runtime::tls::{BrokerEndpoints, EndpointError};

use crate::config::Settings;

/// Numbers tried for the name of a context that is taken.
const MAX_NAMES: u32 = 100;

/// Why the identity was not handed out.
#[derive(Debug, thiserror::Error)]
pub enum AdminContextError {
    /// There is no place for contexts.
    #[error(
        "your identity is in {path}, because neither XDG_CONFIG_HOME nor HOME is set; set one and start again",
        path = .path.display()
    )]
    NoHome {
        /// Where it is.
        path: PathBuf,
    },
    /// All names are taken.
    #[error("{MAX_NAMES} contexts of other federations have the name {name:?}; remove some with `comity context`")]
    Taken {
        /// The name.
        name: String,
    },
    /// The identity is unreadable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A context cannot be read or written.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// The member's address.
    #[error(transparent)]
    Address(#[from] EndpointError),
    /// The copy in the data directory cannot be removed.
    #[error("cannot remove {path}: {source}; remove it by hand", path = .path.display())]
    Remove {
        /// The directory.
        path: PathBuf,
        /// The error.
        #[source]
        source: std::io::Error,
    },
}

/// Where the admin's identity waits between founding and hand-out.
#[must_use]
pub fn admin_dir(data: &Path) -> PathBuf {
    data.join("admin")
}

/// Moves the admin's identity from the data directory to a context named like the trust domain, and makes it the
/// current one if there is none. Does nothing if it was handed out already. An interrupted call is completed by the
/// next one.
///
/// # Errors
/// [`AdminContextError`].
pub fn hand_out(data: &Path, settings: &Settings) -> Result<Option<CliContext>, AdminContextError> {
    let path = admin_dir(data);
    if !IdentityDir::new(&path).exists() {
        return Ok(None);
    }
    let contexts = Contexts::of_caller().ok_or(AdminContextError::NoHome { path })?;
    hand_out_to(&contexts, data, settings)
}

fn hand_out_to(contexts: &Contexts, data: &Path, settings: &Settings) -> Result<Option<CliContext>, AdminContextError> {
    let path = admin_dir(data);
    let waiting = IdentityDir::new(&path);
    let (pem, identity) = waiting.load()?;
    let roots = identity.roots();
    let base = identity.id().trust_domain().as_str();
    let is_free = |name: &str| match contexts.load(name) {
        Err(ContextError::Unknown { .. }) => Ok(true),
        // Written by an interrupted call.
        Ok(context) => Ok(context.identity.roots().is_ok_and(|known| known.hashes().eq(roots.hashes()))),
        Err(error) => Err(error),
    };
    let names = std::iter::once(base.to_owned()).chain((2..MAX_NAMES).map(|number| format!("{base}-{number}")));
    let mut free = None;
    for name in names {
        if is_free(&name)? {
            free = Some(name);
            break;
        }
    }
    let name = free.ok_or_else(|| AdminContextError::Taken { name: base.to_owned() })?;
    let brokers = BrokerEndpoints::new(settings.members.values().map(|address| &address.client))?;
    let context = contexts.save(&name, &brokers, &pem)?;
    if contexts.current()?.is_none() {
        contexts.set_current(&name)?;
    }
    fs::remove_dir_all(&path).map_err(|source| AdminContextError::Remove { path, source })?;
    Ok(Some(context))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeSet;

    use comity_runtime::spiffe::{TrustDomain, UserName};

    use super::*;
    use crate::config::parse_members;
    use crate::provision::{Init, init};

    fn federation(data: &Path) -> Settings {
        let settings = Settings {
            id: 1,
            members: parse_members("1=b1.test:7444/b1.test:7443").unwrap(),
            bootstrap_admins: BTreeSet::new(),
            hosts: BTreeSet::new(),
        };
        let made = Init {
            data: data.to_owned(),
            trust_domain: TrustDomain::new("dev.test").unwrap(),
            settings: settings.clone(),
            admin: UserName::new("ingrid").unwrap(),
            admin_out: admin_dir(data),
        };
        init(&made).unwrap();
        settings
    }

    #[test]
    fn the_identity_moves_to_a_context_and_replaces_none_of_another_federation() {
        let home = tempfile::tempdir().unwrap();
        let contexts = Contexts::new(home.path().join("config"));
        for (data, expected) in [("one", "dev.test"), ("two", "dev.test-2")] {
            let data = home.path().join(data);
            let settings = federation(&data);
            let context = hand_out_to(&contexts, &data, &settings).unwrap().unwrap();
            assert_eq!(context.name, expected);
            assert_eq!(context.brokers.addresses(), ["b1.test:7443"]);
            assert_eq!(context.identity.load().unwrap().1.id().to_string(), "spiffe://dev.test/user/ingrid");
            assert!(!admin_dir(&data).exists());
            assert!(hand_out(&data, &settings).unwrap().is_none());
        }
        assert_eq!(contexts.current().unwrap().as_deref(), Some("dev.test"));
    }

    #[test]
    fn an_interrupted_hand_out_is_completed() {
        let home = tempfile::tempdir().unwrap();
        let contexts = Contexts::new(home.path().join("config"));
        let data = home.path().join("data");
        let settings = federation(&data);
        let (pem, _) = IdentityDir::new(admin_dir(&data)).load().unwrap();
        contexts.save("dev.test", &"b1.test:7443".parse().unwrap(), &pem).unwrap();
        assert_eq!(hand_out_to(&contexts, &data, &settings).unwrap().unwrap().name, "dev.test");
        assert_eq!(contexts.list().unwrap(), ["dev.test"]);
    }
}
