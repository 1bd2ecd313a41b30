//! The audit log at a collector that speaks OTLP over TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comity_audit::{Entry, Verifier};
use comity_broker::audit_collector::AuditCollector;
use comity_runtime::atomic_file;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{LogsService, LogsServiceServer};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use rcgen::{CertificateParams, Issuer, KeyPair};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use crate::federation::{Federation, within};

const TOKEN: &str = "Bearer of-the-collector";

/// A collector that keeps what it gets, if the caller has its token.
#[derive(Clone, Default)]
struct Collector {
    received: Arc<Mutex<Vec<LogRecord>>>,
    /// Whether it says that it rejected a record of each call.
    rejects_one: Arc<Mutex<bool>>,
}

#[tonic::async_trait]
impl LogsService for Collector {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let token = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        if token != Some(TOKEN) {
            return Err(Status::unauthenticated("no token"));
        }
        let resources = request.into_inner().resource_logs;
        let records = resources.into_iter().flat_map(|logs| logs.scope_logs).flat_map(|logs| logs.log_records);
        self.received.lock().unwrap().extend(records);
        let partial_success = self
            .rejects_one
            .lock()
            .unwrap()
            .then(|| ExportLogsPartialSuccess { rejected_log_records: 1, error_message: "too old".to_owned() });
        Ok(Response::new(ExportLogsServiceResponse { partial_success }))
    }
}

impl Collector {
    /// Serves it with a certificate of an authority that `ca` then has.
    async fn serve(&self, ca: &Path) -> SocketAddr {
        let authority_key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::default();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        std::fs::write(ca, authority.self_signed(&authority_key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let identity = Identity::from_pem(certificate.pem(), key.serialize_pem());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
        let serving = server.add_service(LogsServiceServer::new(self.clone()));
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        tokio::spawn(serving.serve_with_incoming(incoming));
        address
    }

    fn indexes(&self) -> Vec<u64> {
        let received = self.received.lock().unwrap();
        received.iter().map(|record| entry(record).index()).collect()
    }

    async fn until_it_has(&self, last: u64) {
        within("the records", async {
            while self.indexes().last() != Some(&last) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    }
}

fn entry(record: &LogRecord) -> Entry {
    let Some(Value::StringValue(line)) = record.body.as_ref().and_then(|body| body.value.as_ref()) else {
        panic!("the body of {record:?} is not text");
    };
    Entry::parse(line).unwrap()
}

async fn metric(federation: &Federation, name: &str) -> u64 {
    let lines = crate::policy_pulls::metric(federation, name).await;
    lines.rsplit(' ').next().unwrap().trim().parse().unwrap()
}

fn size(federation: &Federation) -> u64 {
    federation.broker().group().peek(|state| state.audit.size())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_gets_each_record_in_order_and_a_restarted_leader_goes_on() {
    let mut federation = Federation::start().await;
    let (ca, headers) = (federation.data().join("collector-ca.pem"), federation.data().join("collector-headers"));
    let collector = Collector::default();
    let address = collector.serve(&ca).await;
    let endpoint = format!("https://localhost:{}", address.port());
    atomic_file::write(&headers, b"authorization: Bearer of-somebody-else\n", atomic_file::PRIVATE).unwrap();
    let to = AuditCollector::new(&endpoint, Some(headers.clone()), Some(ca)).unwrap();
    federation.config.audit_collector = Some(to);
    federation.restart().await;
    within("a failed try", async {
        while metric(&federation, "comity_broker_audit_export_failures_total").await == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert!(collector.indexes().is_empty());
    assert!(metric(&federation, "comity_broker_audit_export_lag_records").await > 0);

    atomic_file::write(&headers, format!("authorization: {TOKEN}\n").as_bytes(), atomic_file::PRIVATE).unwrap();
    federation.join("polytech-campus").await;
    let first = size(&federation);
    collector.until_it_has(first - 1).await;
    assert_eq!(collector.indexes(), (0..first).collect::<Vec<_>>());
    let mut verifier = Verifier::default();
    for record in collector.received.lock().unwrap().iter() {
        let entry = entry(record);
        verifier.push(&entry).unwrap();
        let attribute = |name: &str| {
            let found = record.attributes.iter().find(|attribute| attribute.key == name);
            found.and_then(|attribute| attribute.value.clone()?.value)
        };
        assert_eq!(attribute("comity.audit.hash"), Some(Value::StringValue(entry.hash().to_string())));
        assert_eq!(attribute("comity.audit.index"), Some(Value::IntValue(entry.index() as i64)));
    }
    let head = federation.broker().group().peek(|state| state.audit.tree_head());
    assert_eq!(verifier.head_at(first), Some(head));
    within("the recorded end", async {
        while federation.broker().group().peek(|state| state.audit_exported) < first {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;

    collector.received.lock().unwrap().clear();
    *collector.rejects_one.lock().unwrap() = true;
    federation.restart().await;
    federation.join("ncc-main").await;
    let second = size(&federation);
    collector.until_it_has(second - 1).await;
    assert_eq!(collector.indexes(), (first..second).collect::<Vec<_>>());
    within("the lag", async {
        while metric(&federation, "comity_broker_audit_export_lag_records").await > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert!(metric(&federation, "comity_broker_audit_records_rejected_total").await > 0);
}
