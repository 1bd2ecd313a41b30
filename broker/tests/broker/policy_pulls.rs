//! The leader pulls the policy from a real repository: what comes into force, what does not, and what is said about it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use comity_proto::v1;
use comity_proto::v1::agent_service_client::AgentServiceClient;
use comity_proto::v1::policy_history_part::Part;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_provenance::{InForce, ObjectId, ObjectKind, ObjectStore, StoreError, Verdict, judge, policy_at};
use comity_runtime::tls::BrokerChannel;
use comity_testkit::SignedGit;
use tonic::Code;

use super::federation::{Federation, assert_refused, broker_identity, detail, examples, within};
use super::git_server::{GitServer, Mood};

/// A repository with the example policy, and the keys of two signers.
pub(super) struct Author {
    pub(super) home: tempfile::TempDir,
    repository: SignedGit,
}

impl Author {
    pub(super) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let repository = SignedGit::init(home.path(), &["ingrid", "poly"]).unwrap();
        Self { home, repository }
    }

    fn repository(&self) -> PathBuf {
        self.repository.path()
    }

    fn key(&self, person: &str) -> String {
        self.repository.key(person).unwrap()
    }

    pub(super) fn git(&self, arguments: &[&str]) -> String {
        self.repository.git(arguments).unwrap()
    }

    /// Commits everything, signed or not. Returns the commit's id.
    pub(super) fn commit(&self, signer: Option<&str>, message: &str) -> String {
        self.repository.commit(signer, message).unwrap()
    }

    pub(super) fn edit(&self, file: &str, from: &str, to: &str) {
        self.repository.edit(&format!("policy/{file}"), from, to).unwrap();
    }

    /// The example policy, which requires signatures.
    pub(super) fn policy(&self) -> v1::PolicyBundle {
        let mut bundle = examples();
        let signatures = format!(
            "spec:\n  signatures: {{required: true, maintainersNeeded: 1}}\n  commitKeys:\n    - {{maintainer: \
             spiffe://comity.example/user/ingrid, key: {}}}\n",
            self.key("ingrid")
        );
        let head = "kind: Institution\nmetadata:\n  name: polytechnic\nspec:\n";
        let keys = format!("{head}  commitKeys: [{{key: {}}}]\n", self.key("poly"));
        let (mut federations, mut institutions) = (0, 0);
        for file in &mut bundle.files {
            if file.text.contains("kind: Federation") {
                file.text = file.text.replacen("spec:\n", &signatures, 1);
                federations += 1;
            }
            institutions += file.text.matches(head).count();
            file.text = file.text.replacen(head, &keys, 1);
            self.repository.write(&format!("policy/{}", file.path), &file.text).unwrap();
        }
        assert_eq!((federations, institutions), (1, 1));
        bundle
    }
}

pub(super) async fn apply(federation: &Federation, bundle: v1::PolicyBundle, key: &str) -> Result<(), tonic::Status> {
    let request = v1::ApplyPolicyRequest {
        bundle: Some(bundle),
        idempotency_key: key.to_owned(),
        ..v1::ApplyPolicyRequest::default()
    };
    PolicyServiceClient::new(federation.user("ingrid")).apply_policy(request).await.map(|_| ())
}

async fn set(federation: &Federation, repository: &str) -> Result<v1::PolicySource, tonic::Status> {
    let request = v1::SetPolicySourceRequest {
        repository: repository.to_owned(),
        folder: "policy".to_owned(),
        interval_ms: 5_000,
        ..v1::SetPolicySourceRequest::default()
    };
    let answer = PolicyServiceClient::new(federation.user("ingrid")).set_policy_source(request).await?;
    Ok(answer.into_inner().source.unwrap())
}

pub(super) async fn get(federation: &Federation) -> v1::GetPolicyResponse {
    let request = v1::GetPolicyRequest::default();
    PolicyServiceClient::new(federation.user("ingrid")).get_policy(request).await.unwrap().into_inner()
}

/// Sets the source again, which pulls at once, and waits for the verdict about a head.
async fn pulled(federation: &Federation, repository: &str, head: &str) -> v1::GetPolicyResponse {
    set(federation, repository).await.unwrap();
    within(&format!("a verdict about {head}"), async {
        loop {
            let policy = get(federation).await;
            if policy.source.as_ref().is_some_and(|source| source.head == head && source.pulled_at_ms > 0) {
                return policy;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
}

pub(super) fn failure(policy: &v1::GetPolicyResponse) -> v1::PolicyPullFailure {
    policy.source.clone().unwrap().failure.expect("the head is not in force")
}

fn assert_in_force(policy: &v1::GetPolicyResponse, head: &str) {
    let source = policy.source.clone().unwrap();
    assert_eq!((source.commit.as_str(), source.failure), (head, None));
    assert_eq!(policy.bundle.clone().unwrap().commit, head);
}

pub(crate) async fn metric(federation: &Federation, name: &str) -> String {
    let address = federation.broker().admin_addr();
    let answer = tokio::task::spawn_blocking(move || {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    });
    let answer = answer.await.unwrap();
    answer.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned()
}

/// Waits until the metric says whether the head is not in force: it follows the record.
async fn assert_behind(federation: &Federation, value: u8) {
    let expected = format!("comity_broker_policy_source_behind {value}");
    within(&expected, async {
        while metric(federation, "comity_broker_policy_source_behind").await != expected {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_commits_come_into_force_and_others_leave_the_last_good_bundle() {
    let (federation, author) = (Federation::start().await, Author::new());
    apply(&federation, author.policy(), "first").await.unwrap();
    let path = author.repository().to_str().unwrap().to_owned();
    let first = author.commit(Some("ingrid"), "as it is in force");
    assert_in_force(&pulled(&federation, &path, &first).await, &first);

    // From now on only commits change it, whoever asks.
    let status = apply(&federation, examples(), "unsigned").await.unwrap_err();
    let refusal = detail(&status);
    assert_eq!((status.code(), refusal.code.as_str()), (Code::FailedPrecondition, "unsigned-policy"));
    assert!(refusal.remedy.contains(&path), "{refusal:?}");

    author.edit("federation.yaml", "maxQueuedRequestsPerTenant: ", "maxQueuedRequestsPerTenant: 1");
    let second = author.commit(Some("ingrid"), "longer queues");
    let policy = pulled(&federation, &path, &second).await;
    assert_in_force(&policy, &second);
    let hash = policy.hash;

    author.edit("institutions/polytechnic.yaml", "contact: ", "contact: not-");
    let unsigned = author.commit(None, "by nobody");
    let policy = pulled(&federation, &path, &unsigned).await;
    let refused = failure(&policy);
    assert_eq!((policy.hash.as_str(), refused.code.as_str()), (hash.as_str(), "unsigned"));
    assert!(refused.reason.contains("it is not signed") && refused.remedy.contains(&unsigned), "{refused:?}");
    assert_behind(&federation, 1).await;
    assert!(!metric(&federation, "comity_broker_policy_pulls_total{outcome=\"unsigned\"}").await.is_empty());

    assert!(refused.reason.contains("without the signature of institution `polytechnic`"), "{refused:?}");
    let approved = author.commit(Some("poly"), &format!("Approve\n\nApproves: {unsigned}"));
    let policy = pulled(&federation, &path, &approved).await;
    assert_in_force(&policy, &approved);
    assert_behind(&federation, 0).await;

    // An older head, pushed by force.
    author.git(&["reset", "--quiet", "--hard", &first]);
    let refused = failure(&pulled(&federation, &path, &first).await);
    assert_eq!(refused.code, "rollback");
    author.commit(Some("ingrid"), "another history");
    let head = author.git(&["rev-parse", "HEAD"]);
    assert_eq!(failure(&pulled(&federation, &path, &head).await).code, "diverged");
    assert_eq!(get(&federation).await.hash, policy.hash);
    let mut admin = PolicyServiceClient::new(federation.user("ingrid"));
    admin.remove_policy_source(v1::RemovePolicySourceRequest {}).await.unwrap();
    assert_behind(&federation, 0).await;

    // The way back with a broker's own certificate, if the keys of commits are lost.
    let broker = federation.channel(&broker_identity(&federation.ca()));
    let request = v1::ApplyPolicyRequest {
        bundle: Some(examples()),
        idempotency_key: "recover".to_owned(),
        force: true,
        ..v1::ApplyPolicyRequest::default()
    };
    assert!(PolicyServiceClient::new(broker).apply_policy(request).await.unwrap().into_inner().changed);
}

/// A directory as a mounted ConfigMap: links to the files of the current version.
struct Mounted(tempfile::TempDir);

impl Mounted {
    /// Replaces all documents at once, as a kubelet does.
    fn replace(&self, version: &str, files: &[v1::PolicyFile]) {
        let root = self.0.path();
        let folder = root.join(format!("..{version}"));
        std::fs::create_dir(&folder).unwrap();
        for file in files {
            let name = file.path.replace('/', "-");
            std::fs::write(folder.join(&name), &file.text).unwrap();
            let _ = std::os::unix::fs::symlink(format!("..data/{name}"), root.join(&name));
        }
        std::os::unix::fs::symlink(format!("..{version}"), root.join("..next")).unwrap();
        std::fs::rename(root.join("..next"), root.join("..data")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_a_directory_come_into_force_where_no_signatures_are_required() {
    let (federation, author) = (Federation::start().await, Author::new());
    let mounted = Mounted(tempfile::tempdir().unwrap());
    let path = mounted.0.path().to_str().unwrap();
    let changed = |from: &str, to: &str| {
        let mut files = examples().files;
        let count: usize = files.iter().map(|file| file.text.matches(from).count()).sum();
        assert!(count > 0, "{from}");
        files.iter_mut().for_each(|file| file.text = file.text.replace(from, to));
        files
    };
    mounted.replace("1", &changed("maxQueuedRequestsPerTenant: ", "maxQueuedRequestsPerTenant: 1"));
    let before = get(&federation).await.hash;
    let request = v1::SetPolicySourceRequest {
        repository: path.to_owned(),
        interval_ms: 5_000,
        ..v1::SetPolicySourceRequest::default()
    };
    let pull = async |what: &str, is_done: &dyn Fn(&v1::GetPolicyResponse) -> bool| {
        PolicyServiceClient::new(federation.user("ingrid")).set_policy_source(request.clone()).await.unwrap();
        within(what, async {
            loop {
                let policy = get(&federation).await;
                if policy.source.as_ref().is_some_and(|source| source.pulled_at_ms > 0) && is_done(&policy) {
                    return policy;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await
    };
    let first = pull("the documents", &|policy| policy.hash != before).await;
    let source = first.source.unwrap();
    assert_eq!((source.failure, source.head.as_str(), source.commit.as_str()), (None, "", ""));

    mounted.replace("2", &changed("kind: Quota", "kind: Quotum"));
    let invalid =
        pull("a failure", &|policy| policy.source.as_ref().is_some_and(|source| source.failure.is_some())).await;
    assert_eq!((failure(&invalid).code.as_str(), &invalid.hash), ("invalid", &first.hash));

    // An unsigned source gives nobody the authority's key.
    let operators = "brokerOperators:\n    - spiffe://comity.example/user/mallory\n";
    mounted.replace("3", &changed("brokerOperators:\n", operators));
    let is_refused = |policy: &v1::GetPolicyResponse| {
        policy
            .source
            .as_ref()
            .and_then(|source| source.failure.as_ref())
            .is_some_and(|failure| failure.code == "refused")
    };
    assert_eq!(pull("a refusal", &is_refused).await.hash, first.hash);

    mounted.replace("4", &author.policy().files);
    let signed = pull("the policy that requires signatures", &|policy| policy.hash != first.hash).await;
    mounted.replace("5", &examples().files);
    let unsigned =
        pull("a failure", &|policy| policy.source.as_ref().is_some_and(|source| source.failure.is_some())).await;
    assert_eq!((failure(&unsigned).code.as_str(), unsigned.hash), ("unsigned", signed.hash));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_behind_a_server_survives_its_faults_and_a_restart() {
    let author = Author::new();
    let server = GitServer::start(author.home.path(), author.home.path()).await;
    let mut federation = Federation::start().await;
    let credentials = author.home.path().join("credentials");
    let line = format!("https://bot:geheim@localhost:{}\n", server.address.port());
    comity_runtime::atomic_file::write(&credentials, line.as_bytes(), comity_runtime::atomic_file::PRIVATE).unwrap();
    federation.config.policy_ca = Some(server.authority.clone());
    federation.config.policy_credentials = Some(credentials);
    federation.restart().await;
    server.set_mood(Mood::Private("Basic Ym90OmdlaGVpbQ=="));

    apply(&federation, author.policy(), "first").await.unwrap();
    let url = server.url("repository/.git");
    let first = author.commit(None, "as it is in force");
    assert_in_force(&pulled(&federation, &url, &first).await, &first);
    author.edit("federation.yaml", "maxQueuedRequestsPerTenant: ", "maxQueuedRequestsPerTenant: 1");
    let second = author.commit(Some("ingrid"), "longer queues");
    assert_in_force(&pulled(&federation, &url, &second).await, &second);

    server.set_mood(Mood::Redirects);
    set(&federation, &url).await.unwrap();
    let refused = within("a failure", async {
        loop {
            if let Some(failure) = get(&federation).await.source.unwrap().failure {
                return failure;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!((refused.code.as_str(), refused.commit.as_str()), ("unreachable", ""));
    assert!(!refused.reason.contains("geheim"), "{refused:?}");
    let policy = get(&federation).await;
    assert_eq!(policy.bundle.unwrap().commit, second);

    // Another leader, or the same one after a restart, goes on from the commit in force.
    server.set_mood(Mood::Private("Basic Ym90OmdlaGVpbQ=="));
    federation.restart().await;
    let third = author.commit(None, "no document changes");
    assert_in_force(&pulled(&federation, &url, &third).await, &third);

    // A server that hangs holds up no other source.
    server.set_mood(Mood::Hangs);
    set(&federation, &url).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let path = author.repository().display().to_string();
    assert_in_force(&pulled(&federation, &path, &third).await, &third);
    let state = federation.broker().group().read(comity_broker::group::Consistency::Stale, |state| {
        String::from_utf8(comity_core::snapshot::encode(state).unwrap()).unwrap()
    });
    let state = state.await.unwrap();
    assert!(state.contains(&third) && !state.contains("geheim"), "credentials stay on the broker");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_folder_of_the_commit_in_force_is_not_in_force() {
    let (federation, author) = (Federation::start().await, Author::new());
    apply(&federation, author.policy(), "first").await.unwrap();
    let path = author.repository().to_str().unwrap().to_owned();
    for file in examples().files {
        author.repository.write(&format!("other/{}", file.path), &file.text).unwrap();
    }
    author.git(&["add", "other"]);
    let first = author.commit(None, "as it is in force, and another folder");
    assert_in_force(&pulled(&federation, &path, &first).await, &first);
    let request = v1::SetPolicySourceRequest {
        repository: path.clone(),
        folder: "other".to_owned(),
        interval_ms: 5_000,
        ..v1::SetPolicySourceRequest::default()
    };
    PolicyServiceClient::new(federation.user("ingrid")).set_policy_source(request).await.unwrap();
    let refused = within("a failure", async {
        loop {
            if let Some(failure) = get(&federation).await.source.unwrap().failure {
                return failure;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let refused = refused.await;
    assert_eq!((refused.code.as_str(), refused.commit.as_str()), ("other-folder", first.as_str()), "{refused:?}");
    assert_in_force(&pulled(&federation, &path, &first).await, &first);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_sources_are_refused_with_their_field() {
    let federation = Federation::start().await;
    for (repository, shown) in [
        ("http://git.example/policy.git", "http://git.example/policy.git"),
        ("git.example:policy.git", "git.example:policy.git"),
        ("/srv/../etc", "/srv/../etc"),
    ] {
        assert_refused(set(&federation, repository).await, Code::InvalidArgument, "repository", shown);
    }
    let secret = set(&federation, "https://bot:geheim@git.example/policy.git").await.unwrap_err();
    assert!(!format!("{secret:?}").contains("geheim"), "{secret:?}");
    let mut client = PolicyServiceClient::new(federation.user("ingrid"));
    let request = |branch: &str, folder: &str, interval_ms| v1::SetPolicySourceRequest {
        repository: "/srv/policy".to_owned(),
        branch: branch.to_owned(),
        folder: folder.to_owned(),
        interval_ms,
        new_history: false,
    };
    for (request, field, value) in [
        (request("../x", "", 0), "branch", "../x"),
        (request("main", "../x", 0), "folder", "../x"),
        (request("main", "", 10), "interval_ms", "10"),
    ] {
        assert_refused(client.set_policy_source(request).await, Code::InvalidArgument, field, value);
    }
    let nothing = client.remove_policy_source(v1::RemovePolicySourceRequest {}).await.unwrap_err();
    assert_eq!(detail(&nothing).code, "wrong-state");
    for user in ["alice", "chen"] {
        let mut client = PolicyServiceClient::new(federation.user(user));
        let denied = client.set_policy_source(request("main", "", 0)).await.unwrap_err();
        assert_eq!(denied.code(), Code::PermissionDenied);
    }
}

/// What a broker shows an agent.
#[derive(Default)]
struct Shown {
    head: v1::PolicyHead,
    objects: BTreeMap<ObjectId, (ObjectKind, Vec<u8>)>,
}

impl ObjectStore for Shown {
    fn object(&self, id: ObjectId, kind: ObjectKind, _limit: usize) -> Result<Vec<u8>, StoreError> {
        let found = self.objects.get(&id).filter(|(held, _)| *held == kind);
        found.map(|(_, content)| content.clone()).ok_or(StoreError::Missing { kind, id })
    }
}

async fn history(channel: BrokerChannel, verified: &str) -> Result<Shown, tonic::Status> {
    let request = v1::GetPolicyHistoryRequest { verified_commit: verified.to_owned() };
    let mut parts = AgentServiceClient::new(channel).get_policy_history(request).await?.into_inner();
    let mut shown = Shown::default();
    while let Some(v1::PolicyHistoryPart { part }) = parts.message().await? {
        match part.unwrap() {
            Part::Head(head) => shown.head = head,
            Part::Object(object) => {
                let kind = match object.kind() {
                    v1::GitObjectKind::Commit => ObjectKind::Commit,
                    v1::GitObjectKind::Tree => ObjectKind::Tree,
                    _ => ObjectKind::Blob,
                };
                let id = ObjectId::of(kind, &object.content).unwrap();
                shown.objects.insert(id, (kind, object.content));
            }
        }
    }
    Ok(shown)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_reads_no_history_has_one_in_the_brokers_memory() {
    let (federation, author) = (Federation::start().await, Author::new());
    let (member, other) = (federation.join("ncc-main").await, federation.join("polytech-campus").await);
    apply(&federation, author.policy(), "first").await.unwrap();
    let path = author.repository().to_str().unwrap().to_owned();
    let first = author.commit(None, "as it is in force");
    // More than connection and queue hold of what nobody reads.
    let mut last = first.clone();
    for number in 0..16 {
        let comment = format!("# {number}{}\n", "x".repeat(1_000_000));
        author.repository.write("policy/long.yaml", &comment).unwrap();
        last = author.commit(None, "a comment");
    }
    assert_in_force(&pulled(&federation, &path, &last).await, &last);

    let mut agent = AgentServiceClient::new(federation.channel(&member.pem));
    let request = v1::GetPolicyHistoryRequest { verified_commit: first.clone() };
    let unread = agent.get_policy_history(request).await.unwrap();
    let refused = history(federation.channel(&member.pem), &first).await.map(drop).unwrap_err();
    assert_eq!((refused.code(), detail(&refused).code.as_str()), (Code::ResourceExhausted, "limit-reached"));
    assert!(refused.message().contains("has 1 histories of the policy"), "{refused:?}");
    assert!(!history(federation.channel(&other.pem), &first).await.unwrap().objects.is_empty());
    drop(unread);
    within("a place for a history", async {
        while history(federation.channel(&member.pem), &first).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_gets_what_it_needs_to_judge_by_itself() {
    let (federation, author) = (Federation::start().await, Author::new());
    let member = federation.join("ncc-main").await;
    let agent = || federation.channel(&member.pem);
    let nothing = history(agent(), "").await.unwrap();
    assert!(nothing.head == v1::PolicyHead::default() && nothing.objects.is_empty(), "no repository is set");

    apply(&federation, author.policy(), "first").await.unwrap();
    let path = author.repository().to_str().unwrap().to_owned();
    let first = author.commit(None, "as it is in force");
    assert_in_force(&pulled(&federation, &path, &first).await, &first);
    author.edit("federation.yaml", "maxQueuedRequestsPerTenant: ", "maxQueuedRequestsPerTenant: 1");
    let second = author.commit(Some("ingrid"), "longer queues");
    assert_in_force(&pulled(&federation, &path, &second).await, &second);

    let shown = history(agent(), &first).await.unwrap();
    assert_eq!((shown.head.commit.as_str(), shown.head.folder.as_str()), (second.as_str(), "policy"));
    let folder = "policy".parse().unwrap();
    let commits = [&first, &second].map(|commit| commit.parse::<ObjectId>().unwrap());
    let bundle = policy_at(&shown, &folder, commits[0]).unwrap().unwrap();
    let taken_names = std::collections::BTreeSet::new();
    let in_force =
        InForce { bundle: &bundle, commit: Some(commits[0]), began: Some(commits[0]), taken_names: &taken_names };
    let now_ms = federation.broker().group().log_now().0;
    let verdict = judge(&shown, &folder, &in_force, commits[1], now_ms).unwrap();
    assert!(matches!(&verdict, Verdict::Accepted(found) if found.commit == commits[1]), "{verdict:?}");
    let fresh = history(agent(), "").await.unwrap();
    assert!(policy_at(&fresh, &folder, commits[1]).unwrap().is_ok());

    assert_refused(history(agent(), "HEAD").await.map(drop), Code::InvalidArgument, "verified_commit", "HEAD");
    let unknown = history(agent(), &"1".repeat(40)).await.map(drop).unwrap_err();
    let refusal = detail(&unknown);
    assert!(refusal.code == "wrong-state" && refusal.reason.contains("lacks the commit 1111"), "{refusal:?}");
    let user = history(federation.user("ingrid"), "").await.map(drop).unwrap_err();
    assert_eq!(user.code(), Code::PermissionDenied);
    let mut admin = PolicyServiceClient::new(federation.user("ingrid"));
    admin.remove_policy_source(v1::RemovePolicySourceRequest {}).await.unwrap();
    let removed = history(agent(), &second).await.map(drop).unwrap_err();
    assert!(detail(&removed).reason.contains("no source of the policy any more"), "{removed:?}");
}
