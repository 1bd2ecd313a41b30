//! Contexts of the command line: where the brokers of a federation are, and the caller's identity there.
//!
//! ```text
//! ~/.config/comity/current-context        name of the context in use
//! ~/.config/comity/contexts/NAME/         key.pem, cert.pem, ca.pem,
//!                                         context.json {"brokers": "h:p,h:p", "learnt": "h:p", "agent": "/path/agent.sock"}
//! ```
//!
//! `context.json` is written last: a directory without it is not a context.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::atomic_file::{self, FileError, PRIVATE};
use crate::identity::{IdentityDir, IdentityError, IdentityPem};
use crate::tls::{BrokerEndpoints, EndpointError, KnownBrokers};

const CURRENT_FILE: &str = "current-context";
const CONTEXTS_DIR: &str = "contexts";
const SETTINGS_FILE: &str = "context.json";
/// Bytes of a file of this module, at most.
const FILE_MAX_BYTES: u64 = 16 * 1024;
/// Characters of a name, at most: the length of a DNS name, because a trust domain is the usual name.
const NAME_MAX_CHARS: usize = 253;

/// Why a context cannot be used.
#[derive(Debug, Error)]
pub enum ContextError {
    /// The name is not a plain file name.
    #[error(
        "context name {name:?} is refused: want 1 to {NAME_MAX_CHARS} letters, digits, '.', '_' or '-', beginning and \
         ending with a letter or digit"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// There is no such context.
    #[error("there is no context {name:?}; 'comity context list' lists them")]
    Unknown {
        /// The name.
        name: String,
    },
    /// `context.json` cannot be parsed.
    #[error("{} is not a context of this release: {reason}", path.display())]
    Settings {
        /// The file.
        path: PathBuf,
        /// The parse error.
        reason: String,
    },
    /// A broker address is malformed.
    #[error("{} has bad brokers: {source}", path.display())]
    Brokers {
        /// The file.
        path: PathBuf,
        /// The error.
        #[source]
        source: EndpointError,
    },
    /// The identity is unusable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// One context. Its identity is in [`identity`](Self::identity).
#[derive(Debug, Clone)]
pub struct CliContext {
    /// Name of the context.
    pub name: String,
    /// Addresses of the brokers, as given when the context was made.
    pub brokers: BrokerEndpoints,
    /// Addresses of brokers that a broker listed later.
    pub learnt: Option<BrokerEndpoints>,
    /// Directory of the caller's key, certificate and root certificate.
    pub identity: IdentityDir,
    /// Socket of the local API of the agent on this machine, if the caller uses one.
    pub agent: Option<PathBuf>,
}

impl CliContext {
    /// All brokers of the context; learns others.
    #[must_use]
    pub fn known_brokers(&self) -> KnownBrokers {
        let known = KnownBrokers::new(self.brokers.clone());
        if let Some(learnt) = &self.learnt {
            known.learn(learnt);
        }
        known
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredContext {
    brokers: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    learnt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent: Option<PathBuf>,
}

/// The contexts of one user.
#[derive(Debug, Clone)]
pub struct Contexts {
    root: PathBuf,
}

impl Contexts {
    /// Contexts below a directory.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Contexts of the caller: below `$XDG_CONFIG_HOME/comity` or `~/.config/comity`. `None` if neither variable is
    /// set.
    #[must_use]
    pub fn of_caller() -> Option<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
        Some(Self::new(config.join("comity")))
    }

    /// The directory that holds the contexts and the name of the current one.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Names of all contexts, sorted.
    ///
    /// # Errors
    /// [`ContextError::File`].
    pub fn list(&self) -> Result<Vec<String>, ContextError> {
        let dir = self.root.join(CONTEXTS_DIR);
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(FileError { operation: "read", path: dir, source }.into()),
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> =
            names.filter(|name| check_name(name).is_ok() && self.settings_file(name).exists()).collect();
        names.sort();
        Ok(names)
    }

    /// Reads one context. The identity is not read.
    ///
    /// # Errors
    /// [`ContextError`].
    pub fn load(&self, name: &str) -> Result<CliContext, ContextError> {
        check_name(name)?;
        let path = self.settings_file(name);
        let bytes = match atomic_file::read_bounded(&path, FILE_MAX_BYTES) {
            Err(error) if error.is_not_found() => return Err(ContextError::Unknown { name: name.to_owned() }),
            bytes => bytes?,
        };
        parse(&path, &bytes, name, self.identity_dir(name))
    }

    /// Where the identity of a context is or will be. Reads nothing.
    ///
    /// # Errors
    /// [`ContextError::Name`].
    pub fn identity_of(&self, name: &str) -> Result<IdentityDir, ContextError> {
        check_name(name)?;
        Ok(self.identity_dir(name))
    }

    /// Creates a context, or replaces its brokers and identity. Forgets learnt brokers.
    ///
    /// # Errors
    /// [`ContextError`] if the name or the identity is invalid, or a file cannot be written.
    pub fn save(
        &self,
        name: &str,
        brokers: &BrokerEndpoints,
        identity: &IdentityPem,
    ) -> Result<CliContext, ContextError> {
        check_name(name)?;
        let dir = self.identity_dir(name);
        dir.save(identity)?;
        let agent = self.load(name).ok().and_then(|before| before.agent);
        let context =
            CliContext { name: name.to_owned(), brokers: brokers.clone(), learnt: None, identity: dir, agent };
        self.write_settings(&context)?;
        Ok(context)
    }

    /// Sets the agent of a context.
    ///
    /// # Errors
    /// [`ContextError`] if there is no such context, or its file cannot be written.
    pub fn set_agent(&self, name: &str, socket: &Path) -> Result<CliContext, ContextError> {
        let context = CliContext { agent: Some(socket.to_owned()), ..self.load(name)? };
        self.write_settings(&context)?;
        Ok(context)
    }

    /// Replaces the learnt brokers of a context. Does nothing if the context has other brokers by now.
    ///
    /// # Errors
    /// [`ContextError`] if there is no such context, or its file cannot be written.
    pub fn set_learnt(&self, name: &str, known: &KnownBrokers) -> Result<(), ContextError> {
        let (context, lists) = (self.load(name)?, known.lists());
        let learnt = BrokerEndpoints::new(lists.learnt()).ok();
        if context.brokers != *lists.configured() || context.learnt == learnt {
            return Ok(());
        }
        self.write_settings(&CliContext { learnt, ..context })
    }

    fn write_settings(&self, context: &CliContext) -> Result<(), ContextError> {
        Ok(atomic_file::write(&self.settings_file(&context.name), &text(context), PRIVATE)?)
    }

    /// The name of the current context; `None` if there is none.
    ///
    /// # Errors
    /// [`ContextError`] if the file cannot be read, or holds no valid name.
    pub fn current(&self) -> Result<Option<String>, ContextError> {
        let bytes = match atomic_file::read_bounded(&self.root.join(CURRENT_FILE), FILE_MAX_BYTES) {
            Err(error) if error.is_not_found() => return Ok(None),
            bytes => bytes?,
        };
        let name = String::from_utf8_lossy(&bytes).trim().to_owned();
        check_name(&name)?;
        Ok(Some(name))
    }

    /// Makes a context the current one.
    ///
    /// # Errors
    /// [`ContextError`] if there is no such context.
    pub fn set_current(&self, name: &str) -> Result<(), ContextError> {
        self.load(name)?;
        Ok(atomic_file::write(&self.root.join(CURRENT_FILE), format!("{name}\n").as_bytes(), PRIVATE)?)
    }

    /// Deletes a context with its key. If it was the current one, there is none afterwards.
    ///
    /// # Errors
    /// [`ContextError`] if there is no such context, or a file cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), ContextError> {
        self.load(name)?;
        let failed = |path: &Path, source| FileError { operation: "remove", path: path.to_owned(), source };
        if self.current()?.as_deref() == Some(name) {
            let current = self.root.join(CURRENT_FILE);
            fs::remove_file(&current).map_err(|source| failed(&current, source))?;
        }
        // Removed first: what a crash leaves is no context.
        let (settings, dir) = (self.settings_file(name), self.dir(name));
        fs::remove_file(&settings).map_err(|source| failed(&settings, source))?;
        Ok(fs::remove_dir_all(&dir).map_err(|source| failed(&dir, source))?)
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.root.join(CONTEXTS_DIR).join(name)
    }

    fn identity_dir(&self, name: &str) -> IdentityDir {
        IdentityDir::new(self.dir(name))
    }

    fn settings_file(&self, name: &str) -> PathBuf {
        self.dir(name).join(SETTINGS_FILE)
    }
}

/// Reads the text of `context.json`; `path` is for the errors only.
fn parse(path: &Path, text: &[u8], name: &str, identity: IdentityDir) -> Result<CliContext, ContextError> {
    let stored: StoredContext = serde_json::from_slice(text)
        .map_err(|error| ContextError::Settings { path: path.to_owned(), reason: error.to_string() })?;
    let parse = |list: &str| list.parse().map_err(|source| ContextError::Brokers { path: path.to_owned(), source });
    let brokers = parse(&stored.brokers)?;
    let learnt = stored.learnt.as_deref().map(parse).transpose()?;
    Ok(CliContext { name: name.to_owned(), brokers, learnt, identity, agent: stored.agent })
}

/// The text of `context.json`.
fn text(context: &CliContext) -> Vec<u8> {
    let stored = StoredContext {
        brokers: context.brokers.to_string(),
        learnt: context.learnt.as_ref().map(ToString::to_string),
        agent: context.agent.clone(),
    };
    serde_json::to_vec_pretty(&stored).expect("addresses and paths serialise")
}

/// Keeps the name of a context a plain file name below the directory of contexts.
fn check_name(name: &str) -> Result<(), ContextError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let ends = name.bytes().next().into_iter().chain(name.bytes().next_back());
    let is_valid = !name.is_empty()
        && name.len() <= NAME_MAX_CHARS
        && name.bytes().all(allowed)
        && ends.into_iter().all(|byte| byte.is_ascii_alphanumeric());
    if is_valid { Ok(()) } else { Err(ContextError::Name { name: name.chars().take(80).collect() }) }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::{Duration, SystemTime};

    use comity_fuzz::fuzz;

    use super::*;
    use crate::ca::CertificateAuthority;
    use crate::spiffe::TrustDomain;

    fn identity(domain: &str) -> IdentityPem {
        let now = SystemTime::now();
        let ca = CertificateAuthority::create(TrustDomain::new(domain).unwrap(), now).unwrap();
        let id = format!("spiffe://{domain}/user/alice").parse().unwrap();
        ca.new_identity(&id, &[], Duration::from_secs(3600), now).unwrap()
    }

    fn contexts(home: &tempfile::TempDir) -> Contexts {
        Contexts::new(home.path().join("comity"))
    }

    #[test]
    fn contexts_are_saved_listed_chosen_and_removed() {
        let home = tempfile::tempdir().unwrap();
        let contexts = contexts(&home);
        assert!(contexts.list().unwrap().is_empty() && contexts.current().unwrap().is_none());
        let brokers: BrokerEndpoints = "b1.test:7443,b2.test:7443".parse().unwrap();
        for name in ["dev.test", "b"] {
            contexts.save(name, &brokers, &identity("dev.test")).unwrap();
        }
        assert_eq!(contexts.list().unwrap(), ["b", "dev.test"]);
        let loaded = contexts.load("dev.test").unwrap();
        assert_eq!(loaded.brokers, brokers);
        assert_eq!(loaded.identity.load().unwrap().1.id().to_string(), "spiffe://dev.test/user/alice");
        contexts.set_current("dev.test").unwrap();
        assert_eq!(contexts.current().unwrap().as_deref(), Some("dev.test"));
        contexts.remove("b").unwrap();
        assert_eq!(contexts.current().unwrap().as_deref(), Some("dev.test"));
        contexts.remove("dev.test").unwrap();
        assert!(contexts.list().unwrap().is_empty() && contexts.current().unwrap().is_none());
        assert!(matches!(contexts.remove("dev.test"), Err(ContextError::Unknown { .. })));
    }

    #[test]
    fn a_context_keeps_its_agent() {
        let home = tempfile::tempdir().unwrap();
        let contexts = contexts(&home);
        let brokers: BrokerEndpoints = "b1.test:7443".parse().unwrap();
        assert_eq!(contexts.save("dev", &brokers, &identity("dev.test")).unwrap().agent, None);
        let socket = Path::new("/run/agent.sock");
        contexts.set_agent("dev", socket).unwrap();
        assert_eq!(contexts.save("dev", &brokers, &identity("dev.test")).unwrap().agent.as_deref(), Some(socket));
        assert_eq!(contexts.load("dev").unwrap().agent.as_deref(), Some(socket));
    }

    #[test]
    fn learnt_brokers_are_kept_until_the_context_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        let contexts = contexts(&home);
        let brokers: BrokerEndpoints = "b1.test:7443".parse().unwrap();
        let known = contexts.save("dev", &brokers, &identity("dev.test")).unwrap().known_brokers();
        known.learn(&"b1.test:7443,b2.test:7443".parse().unwrap());
        contexts.set_learnt("dev", &known).unwrap();
        let loaded = contexts.load("dev").unwrap();
        assert_eq!(
            (&loaded.brokers, loaded.learnt.as_ref().unwrap().to_string()),
            (&brokers, "b2.test:7443".to_owned())
        );
        assert_eq!(loaded.known_brokers().endpoints().to_string(), "b1.test:7443,b2.test:7443");
        let file = contexts.root().join("contexts/dev/context.json");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

        known.learn(&brokers);
        contexts.set_learnt("dev", &known).unwrap();
        assert_eq!(contexts.load("dev").unwrap().learnt, None);

        let others: BrokerEndpoints = "b9.test:7443".parse().unwrap();
        contexts.save("dev", &others, &identity("dev.test")).unwrap();
        known.learn(&"b2.test:7443".parse().unwrap());
        contexts.set_learnt("dev", &known).unwrap();
        assert_eq!(contexts.load("dev").unwrap().learnt, None, "the context is another one by now");
    }

    #[test]
    fn only_the_owner_can_read_keys_and_settings() {
        let home = tempfile::tempdir().unwrap();
        let contexts = contexts(&home);
        contexts.save("dev", &"b:1".parse().unwrap(), &identity("dev.test")).unwrap();
        contexts.set_current("dev").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let dir = contexts.root().join("contexts/dev");
        assert_eq!([mode(contexts.root()), mode(&dir)], [0o700; 2]);
        assert_eq!([mode(&dir.join("key.pem")), mode(&dir.join("context.json"))], [0o600; 2]);
        assert_eq!(mode(&contexts.root().join("current-context")), 0o600);
    }

    #[test]
    fn names_cannot_leave_the_directory() {
        let home = tempfile::tempdir().unwrap();
        let contexts = contexts(&home);
        for name in ["", ".", "..", "../x", "a/b", "-a", "a.", "ä", &"a".repeat(254)] {
            assert!(matches!(contexts.load(name), Err(ContextError::Name { .. })), "{name}");
            let saved = contexts.save(name, &"b:1".parse().unwrap(), &identity("dev.test"));
            assert!(matches!(saved, Err(ContextError::Name { .. })), "{name}");
        }
        assert!(matches!(contexts.set_current("absent"), Err(ContextError::Unknown { .. })));
    }

    #[test]
    fn files_of_contexts() {
        let valid = [
            r#"{"brokers": "b1.test:7443,[::1]:7443"}"#,
            r#"{"brokers": "b:1", "learnt": "b2:1", "agent": "/run/agent.sock"}"#,
        ];
        fuzz!("context_file", valid.map(|text| text.as_bytes().to_vec()).to_vec(), |bytes: &[u8]| {
            let read = |text: &[u8]| parse(Path::new("context.json"), text, "dev", IdentityDir::new("dev"));
            match read(bytes) {
                Ok(context) => {
                    let again = read(&text(&context)).expect("a context that was read can be written, and read again");
                    assert_eq!(text(&again), text(&context), "nothing is lost");
                    true
                }
                Err(error) => {
                    assert!(error.to_string().contains("context.json"), "{error}");
                    false
                }
            }
        });
    }

    #[test]
    fn a_damaged_context_is_named() {
        let home = tempfile::tempdir().unwrap();
        let contexts = contexts(&home);
        contexts.save("dev", &"b:1".parse().unwrap(), &identity("dev.test")).unwrap();
        let file = contexts.root().join("contexts/dev/context.json");
        let texts =
            ["{", "{\"brokers\":\"b:1\",\"x\":1}", "{\"brokers\":\"b\"}", "{\"brokers\":\"b:1\",\"learnt\":\"b 2:1\"}"];
        for text in texts {
            fs::write(&file, text).unwrap();
            assert!(contexts.load("dev").unwrap_err().to_string().contains("context.json"), "{text}");
        }
    }
}
