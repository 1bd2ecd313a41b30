//! The policy and the requests of the stores; requests stay queued because no donor joins.

use std::fs;
use std::path::Path;

use anyhow::Result;
use comity_proto::v1;
use comity_proto::v1::share::{Kind, Whole};

/// Number of tenants, which take turns because each one's queue is bounded.
const TENANTS: u64 = 8;
const CLASS: &str = "frontier";
/// The origin of the requests.
pub(crate) const ORIGIN: &str = "campus";

/// Request number `number`.
pub(crate) fn request(number: u64) -> v1::SubmitRequestRequest {
    request_of(&tenant(number % TENANTS), number, 0)
}

/// The id of a tenant.
pub(crate) fn tenant(number: u64) -> String {
    format!("tenant-{number}")
}

/// Request number `number` for a tenant; its purpose is its number.
pub(crate) fn request_of(tenant: &str, number: u64, start_by_ms: u64) -> v1::SubmitRequestRequest {
    let spec = v1::RequestSpec {
        tenant: tenant.to_owned(),
        origin: ORIGIN.to_owned(),
        gpus: Some(v1::GpuDemand {
            class: CLASS.to_owned(),
            share: Some(v1::Share { kind: Some(Kind::Whole(Whole {})) }),
            count: 1,
            cpu_milli_per_gpu: 8_000,
            memory_mib_per_gpu: 65_536,
            ..v1::GpuDemand::default()
        }),
        topology: Some(v1::Topology { same_node: true, ..v1::Topology::default() }),
        duration_ms: 3_600_000,
        delivery: v1::Delivery::Namespace.into(),
        purpose: number.to_string(),
        start_by_ms,
        ..v1::RequestSpec::default()
    };
    v1::SubmitRequestRequest { spec: Some(spec), idempotency_key: format!("write-{number}"), dry_run: false }
}

/// Writes the policy into a directory.
pub(crate) fn write(dir: &Path) -> Result<()> {
    let mut documents = vec![
        document(
            "Federation",
            "stores",
            "  trustDomain: comity.example\n  maintainers: ['spiffe://comity.example/user/admin']\n  \
             limits: {maxQueuedRequests: 50000, maxQueuedRequestsPerTenant: 10000}\n",
        ),
        document("GpuClass", CLASS, "  selector: device.memoryMiB >= 80000\n  rank: 300\n"),
        institution("borrowers", "AZ4j2yeTbEsuiTcsVm7X0hoin0VTAeESM9YOgIKdE+Y=", ORIGIN),
        institution("lenders", "kjCufuHy8Ib0zOnXEOPr77bYgyhixGLJpBR/L7VmkgY=", "donor"),
        document(
            "Agreement",
            "all-lend-to-all",
            &format!("  borrowers: [borrowers]\n  lenders: [lenders]\n  classes: [{CLASS}]\n  purpose: writes\n"),
        ),
        document(
            "Cluster",
            "donor",
            &format!("  institution: lenders\n  lends: [{{classes: [{CLASS}]}}]\n  delivery: [namespace]\n"),
        ),
    ];
    documents.extend((0..TENANTS).map(|number| {
        let spec = format!(
            "  institution: borrowers\n  members: [{{id: 'spiffe://comity.example/user/alice', role: submitter}}]\n  \
             classes: [{CLASS}]\n  clusters: [{ORIGIN}]\n"
        );
        document("Tenant", &tenant(number), &spec)
    }));
    fs::create_dir_all(dir)?;
    fs::write(dir.join("stores.yaml"), documents.join("---\n"))?;
    Ok(())
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata:\n  name: {name}\nspec:\n{spec}")
}

fn institution(name: &str, key: &str, cluster: &str) -> String {
    let spec = format!(
        "  displayName: {name}\n  contact: stores@comity.example\n  signingKeys: ['ed25519:{key}']\n  \
         clusters: [{cluster}]\n  operators: ['spiffe://comity.example/user/admin']\n"
    );
    document("Institution", name, &spec)
}
