//! Every RPC as every kind of caller, over the wire: docs/threat-model.md shows who is let in. `COMITY_WRITE_DOCS=1`
//! writes the table of this run into the page.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use comity_proto::error_detail;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_runtime::identity::{IdentityPem, IdentitySource, TlsIdentity};
use comity_runtime::tls::{BrokerChannel, BrokerEndpoints, ClientTls, connect};
use http::uri::PathAndQuery;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::federation::{Federation, broker_identity, examples, within};

const BEGIN: &str = "<!-- roles: written by broker/tests/broker/role_matrix.rs -->\n";
const END: &str = "<!-- end of roles -->\n";

/// Columns of the table, in its order.
const CALLERS: [&str; 15] = [
    "anonymous",
    "no role",
    "viewer",
    "submitter",
    "tenant admin",
    "institution operator",
    "maintainer",
    "broker operator",
    "planner",
    "first admin, no policy yet",
    "cluster",
    "broker",
    "revoked maintainer",
    "operator of a suspended institution",
    "evicted cluster",
];
/// Columns of callers who may do what anybody may, and nothing else.
const EXCLUDED: std::ops::Range<usize> = 12..15;
const ANONYMOUS: usize = 0;
const BROKER: usize = 11;

/// An RPC of an API definition.
struct Procedure {
    /// As in "comity.v1.LeaseService".
    service: String,
    name: String,
}

impl Procedure {
    fn is_between_brokers(&self) -> bool {
        self.service.starts_with("comity.raft.")
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every RPC of the definitions in `proto/comity`.
fn procedures() -> Vec<Procedure> {
    let mut files: Vec<PathBuf> = Vec::new();
    for package in ["v1", "raft/v1"] {
        let folder = repository().join("proto/comity").join(package);
        files.extend(std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    }
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        let word = |line: &str, keyword: &str| -> Option<String> {
            let rest = line.trim_start().strip_prefix(keyword)?.trim_start();
            Some(rest.split([' ', '(', ';', '{']).next()?.to_owned())
        };
        let package = text.lines().find_map(|line| word(line, "package ")).unwrap();
        let mut service = String::new();
        for line in text.lines() {
            if let Some(name) = word(line, "service ") {
                service = format!("{package}.{name}");
            } else if let Some(name) = word(line, "rpc ") {
                found.push(Procedure { service: service.clone(), name });
            }
        }
    }
    found.sort_by_key(|it| (it.is_between_brokers(), it.service.clone()));
    found
}

/// A caller's connections to both ports.
struct Connections {
    clients: BrokerChannel,
    brokers: BrokerChannel,
}

fn connections(federation: &Federation, pem: Option<&IdentityPem>) -> Connections {
    let channel = |address: std::net::SocketAddr| {
        let endpoints = BrokerEndpoints::new([address.to_string()]).unwrap();
        let tls = match pem {
            Some(pem) => {
                let source = IdentitySource::new(TlsIdentity::from_pem(pem).unwrap());
                ClientTls::new(federation.ca().roots(), source.subscribe())
            }
            None => ClientTls::anonymous(federation.ca().roots().clone()),
        };
        connect(&endpoints, &tls)
    };
    let broker = federation.broker();
    Connections { clients: channel(broker.client_addr()), brokers: channel(broker.raft_addr()) }
}

/// Whether an empty message gets past the check of who calls: what it lacks is found after that.
async fn is_let_in(channel: &BrokerChannel, procedure: &Procedure) -> bool {
    let path = format!("/{}/{}", procedure.service, procedure.name);
    let call = async {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::try_from(path.clone()).unwrap();
        // A streaming call serves unary ones too.
        client.server_streaming(Request::new(()), path, ProstCodec::<(), ()>::default()).await
    };
    let Err(status) = within(&path, call).await else { return true };
    if procedure.is_between_brokers() && status.code() == Code::Unavailable {
        // That port has no connections without a certificate.
        return false;
    }
    assert!(!matches!(status.code(), Code::Unavailable | Code::Unimplemented), "{path}: {status:?}");
    match error_detail(&status) {
        Some(detail) => !matches!(detail.code.as_str(), "unauthenticated" | "permission-denied" | "revoked"),
        None => {
            // Between brokers: who is in may still speak for itself only.
            let stranger = status.code() == Code::PermissionDenied && status.message().contains("is no broker of");
            status.code() != Code::Unauthenticated && !stranger
        }
    }
}

/// The example policy, with somebody who is only a broker operator, and somebody who is only a planner.
fn policy() -> v1::PolicyBundle {
    let mut bundle = examples();
    let operator = "planners: [spiffe://comity.example/user/ci]\n  brokerOperators:\n    \
                    - spiffe://comity.example/user/olga\n";
    for file in &mut bundle.files {
        file.text = file.text.replace("brokerOperators:\n", operator);
    }
    assert!(bundle.files.iter().any(|file| file.text.contains("user/olga")), "the example names broker operators");
    bundle
}

/// Revokes the maintainer admin, suspends the institution that emeka operates, and evicts startup-pc.
async fn exclude(federation: &Federation) {
    let mut ingrid = FederationServiceClient::new(federation.user("ingrid"));
    let (cluster, idempotency_key) = ("startup-pc".to_owned(), "evict".to_owned());
    let cluster = v1::EvictClusterRequest { cluster, idempotency_key, ..v1::EvictClusterRequest::default() };
    ingrid.evict_cluster(cluster).await.unwrap();
    let (institution, idempotency_key) = ("physics-institute".to_owned(), "suspend".to_owned());
    let suspended =
        v1::SuspendInstitutionRequest { institution, idempotency_key, ..v1::SuspendInstitutionRequest::default() };
    ingrid.suspend_institution(suspended).await.unwrap();
    let (user, idempotency_key) = ("admin".to_owned(), "revoke".to_owned());
    let user = v1::RevokeUserRequest { user, idempotency_key, ..v1::RevokeUserRequest::default() };
    ingrid.revoke_user(user).await.unwrap();
}

/// For each RPC, whether each caller is let in.
async fn observed(procedures: &[Procedure]) -> Vec<[bool; CALLERS.len()]> {
    let bare = Federation::bare().await;
    let federation = Federation::bare().await;
    let request = v1::ApplyPolicyRequest {
        bundle: Some(policy()),
        idempotency_key: "roles".to_owned(),
        ..v1::ApplyPolicyRequest::default()
    };
    PolicyServiceClient::new(federation.user("admin")).apply_policy(request).await.unwrap();
    let (cluster, evicted) = (federation.join("ncc-main").await, federation.join("startup-pc").await);
    let user = |name: &str| Some(federation.user_pem(name));
    exclude(&federation).await;
    let callers = [
        connections(&federation, None),
        connections(&federation, user("mallory").as_ref()),
        connections(&federation, user("hana").as_ref()),
        connections(&federation, user("alice").as_ref()),
        connections(&federation, user("jonas").as_ref()),
        connections(&federation, user("chen").as_ref()),
        connections(&federation, user("ingrid").as_ref()),
        connections(&federation, user("olga").as_ref()),
        connections(&federation, user("ci").as_ref()),
        connections(&bare, Some(bare.user_pem("admin")).as_ref()),
        connections(&federation, Some(&cluster.pem)),
        connections(&federation, Some(&broker_identity(&federation.ca()))),
        connections(&federation, user("admin").as_ref()),
        connections(&federation, user("emeka").as_ref()),
        connections(&federation, Some(&evicted.pem)),
    ];
    let mut rows = Vec::new();
    for procedure in procedures {
        let mut row = [false; CALLERS.len()];
        for (cell, caller) in row.iter_mut().zip(&callers) {
            let channel = if procedure.is_between_brokers() { &caller.brokers } else { &caller.clients };
            *cell = is_let_in(channel, procedure).await;
        }
        rows.push(row);
    }
    rows
}

fn table(procedures: &[Procedure], rows: &[[bool; CALLERS.len()]]) -> String {
    let mut text = format!("| RPC | {} |\n|---|{}\n", CALLERS.join(" | "), "---|".repeat(CALLERS.len()));
    for (procedure, row) in procedures.iter().zip(rows) {
        let service = procedure.service.trim_start_matches("comity.v1.").trim_start_matches("comity.");
        let cells: Vec<&str> = row.iter().map(|let_in| if *let_in { "yes" } else { "" }).collect();
        writeln!(text, "| `{service}/{}` | {} |", procedure.name, cells.join(" | ")).unwrap();
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_who_is_let_in_by_each_rpc() {
    let procedures = procedures();
    assert!(procedures.len() > 40, "only {} RPCs were found", procedures.len());
    let rows = observed(&procedures).await;
    for (procedure, row) in procedures.iter().zip(&rows) {
        let name = &procedure.name;
        for column in EXCLUDED {
            assert!(!row[column] || row[ANONYMOUS], "{name} serves {}", CALLERS[column]);
        }
        let let_in: Vec<usize> = (0..CALLERS.len()).filter(|column| row[*column]).collect();
        assert!(!procedure.is_between_brokers() || let_in == [BROKER], "{name} serves columns {let_in:?}");
    }
    let page = repository().join("docs/threat-model.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the page has a place for the table");
    let (_, after) = rest.split_once(END).expect("the table has an end");
    let written = format!("{before}{BEGIN}\n{}\n{END}{after}", table(&procedures, &rows));
    if std::env::var_os("COMITY_WRITE_DOCS").is_some() {
        std::fs::write(&page, &written).unwrap();
    }
    let differences: Vec<&str> = written.lines().filter(|line| !text.contains(line)).collect();
    assert!(
        text == written || std::env::var_os("COMITY_WRITE_DOCS").is_some(),
        "docs/threat-model.md shows other cells; look whether the change is meant, and then run COMITY_WRITE_DOCS=1 \
         cargo test -p comity-broker --test broker role_matrix:\n{differences:#?}"
    );
}
