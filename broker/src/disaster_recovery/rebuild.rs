//! `comity-broker rebuild`: sets a damaged log aside, so that the group sends it again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use comity_proto::raft::v1::hello_response::Verdict;
use comity_proto::raft::v1::{HelloRequest, HelloResponse};
use comity_runtime::ca::{CaError, CertificateAuthority};
use comity_runtime::identity::{IdentityError, IdentitySource, TlsIdentity};
use comity_runtime::spiffe::SpiffeId;
use comity_runtime::tls::ClientTls;

use crate::config::{ConfigError, Settings, ca_dir};
use crate::eligibility::Eligibility;
use crate::group::members::hello::address_of;
use crate::provision::{ProvisionError, ensure_identity};
use crate::replication::identity::Incarnation;
use crate::replication::member::MemberAddress;
use crate::storage;
use crate::transport::Peers;

/// Timeout of one answer.
const REBUILD_HELLO_TIMEOUT: Duration = Duration::from_secs(3);
/// Validity of the certificate for the queries.
const QUERY_VALIDITY: Duration = Duration::from_secs(600);

/// Why a rebuild was refused; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The authority.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// This broker's certificate.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// This broker's certificate cannot be made.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// The broker is still running.
    #[error("the broker in {} runs; stop it first", .0.display())]
    Running(PathBuf),
    /// No leader with a majority can send the log.
    #[error(
        "no leader that a majority of the brokers answers was found (asked: {asked}); this disk may hold what no \
        other one has, so it stays as it is; start the other brokers first, or, if they are gone for good, run \
        `comity-broker recover` on the best copy that is left"
    )]
    NoMajority {
        /// Brokers queried, and their answers.
        asked: String,
    },
    /// The broker's number was retired.
    #[error(
        "broker {0} was removed from its group, and numbers are never used again; make a broker with a new number by \
        `comity-broker add-identity`"
    )]
    Removed(u64),
    /// A file.
    #[error("cannot set {} aside: {source}", path.display())]
    Aside {
        /// The directory.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// Outcome of a rebuild.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuilt {
    /// This broker.
    pub id: u64,
    /// The leader that will send the log.
    pub leader: u64,
    /// Where the old log is kept, if there was one.
    pub aside: Option<PathBuf>,
    /// The members, as the leader has them.
    pub members: BTreeMap<u64, MemberAddress>,
    /// Last entries of both logs, if the old log is committed further than the leader's log reaches.
    pub further: Option<(u64, u64)>,
}

/// Queries the members in `settings`, and further members that they name. Returns each answer or error.
pub(crate) async fn ask_members(
    settings: &Settings,
    ca: &CertificateAuthority,
) -> Result<BTreeMap<u64, Result<HelloResponse, String>>, RebuildError> {
    let me = SpiffeId::broker(ca.trust_domain().clone(), settings.id);
    let pem = ca.new_identity(&me, &[], QUERY_VALIDITY, SystemTime::now())?;
    let source = IdentitySource::new(TlsIdentity::from_pem(&pem)?);
    let tls = ClientTls::new(ca.roots().clone(), source.subscribe());
    let peers = Peers::new(settings.id, ca.trust_domain().clone(), tls, Eligibility::without_disk(settings.id));
    let hello = HelloRequest {
        broker: settings.id,
        incarnation: Incarnation::draw().as_str().to_owned(),
        only_asks: true,
        ..HelloRequest::default()
    };
    let mut answers = BTreeMap::new();
    let mut to_ask = settings.members.clone();
    to_ask.remove(&settings.id);
    // Answers name further members.
    while let Some((id, address)) = to_ask.pop_first() {
        let answer =
            peers.hello(id, &address, hello.clone(), REBUILD_HELLO_TIMEOUT).await.map_err(|error| error.to_string());
        if let Ok(answer) = &answer {
            let others = answer.members.iter().filter(|it| it.id != settings.id && !answers.contains_key(&it.id));
            to_ask.extend(others.filter(|it| it.id != id).map(|it| (it.id, address_of(it))));
        }
        answers.insert(id, answer);
    }
    Ok(answers)
}

/// The leader with a majority, if one of `answers` is its own.
pub(crate) fn leading(answers: &BTreeMap<u64, Result<HelloResponse, String>>) -> Option<(u64, &HelloResponse)> {
    answers.iter().find_map(|(id, answer)| {
        let answer = answer.as_ref().ok()?;
        (answer.leader == *id && answer.leader_last_index > 0).then_some((*id, answer))
    })
}

pub(crate) fn described(answers: &BTreeMap<u64, Result<HelloResponse, String>>) -> String {
    let one = |(id, answer): (&u64, &Result<HelloResponse, String>)| match answer {
        Ok(answer) if answer.leader == 0 => format!("broker {id} knows no leader"),
        Ok(answer) => format!("broker {id} follows broker {}", answer.leader),
        Err(error) => error.clone(),
    };
    if answers.is_empty() { "nobody".to_owned() } else { answers.iter().map(one).collect::<Vec<_>>().join("; ") }
}

/// Sets this broker's log aside and saves the current members. On its next start the broker finds them, gets the log,
/// and then votes.
///
/// # Errors
/// [`RebuildError`]; then nothing was changed.
pub async fn rebuild(data: &Path) -> Result<Rebuilt, RebuildError> {
    let settings = Settings::load(data)?;
    let ca = CertificateAuthority::load(&ca_dir(data))?;
    let group_dir = data.join("group");
    not_running(&group_dir)?;
    let answers = ask_members(&settings, &ca).await?;
    let Some((leader, answer)) = leading(&answers) else {
        return Err(RebuildError::NoMajority { asked: described(&answers) });
    };
    if answer.verdict() == Verdict::Removed {
        return Err(RebuildError::Removed(settings.id));
    }
    let mut members: BTreeMap<u64, MemberAddress> =
        answer.members.iter().map(|member| (member.id, address_of(member))).collect();
    if let (false, Some(own)) = (members.contains_key(&settings.id), settings.members.get(&settings.id)) {
        members.insert(settings.id, own.clone());
    }
    let leader_last = answer.leader_last_index;
    let (old, id) = (group_dir.clone(), settings.id);
    // A log that cannot be read is the usual reason to be here.
    let read = tokio::task::spawn_blocking(move || storage::read_beside(&old, id).ok()).await.ok().flatten();
    let committed = read.and_then(|copy| copy.committed);
    let further = committed.filter(|own| *own > leader_last).map(|own| (own, leader_last));
    ensure_identity(&ca, &settings, data)?;
    let aside = set_aside(&group_dir)?;
    Settings { members: members.clone(), ..settings.clone() }.save(data)?;
    Ok(Rebuilt { id: settings.id, leader, aside, members, further })
}

/// Refuses while a process has the log open.
pub(crate) fn not_running(group_dir: &Path) -> Result<(), RebuildError> {
    let Ok(lock) = File::open(group_dir.join("log").join("LOCK")) else { return Ok(()) };
    lock.try_lock().map_err(|_| RebuildError::Running(group_dir.to_owned()))
}

/// Renames a directory to a free name beside it; `None` if it does not exist.
pub(crate) fn set_aside(dir: &Path) -> Result<Option<PathBuf>, RebuildError> {
    if !dir.exists() {
        return Ok(None);
    }
    let fail = |source| RebuildError::Aside { path: dir.to_owned(), source };
    let free = (1_u32..).map(|number| dir.with_extension(format!("old-{number}"))).find(|path| !path.exists());
    let to = free.ok_or_else(|| fail(io::ErrorKind::AlreadyExists.into()))?;
    fs::rename(dir, &to).map_err(fail)?;
    if let Some(parent) = dir.parent() {
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(fail)?;
    }
    Ok(Some(to))
}
