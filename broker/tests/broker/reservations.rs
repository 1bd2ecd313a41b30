//! What reservations keep, as callers see it.

use comity_proto::v1;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use tonic::Code;

use crate::federation::{Federation, assert_refused, examples};

const RESERVATIONS: &str = "
apiVersion: policy.comity.dev/v1
kind: Schedule
metadata: {name: lessons}
spec: {timeZone: Europe/Zurich, windows: [{days: [mon, wed], from: '09:00', until: '12:00'}]}
---
apiVersion: policy.comity.dev/v1
kind: Reservation
metadata: {name: course}
spec: {tenant: poly-ml, class: frontier, gpus: 8, clusters: [ncc-main, physics-farm], during: lessons}
";

const WEEK_MS: u64 = 7 * 24 * 3_600_000;

#[tokio::test(flavor = "multi_thread")]
async fn members_see_what_reservations_keep() {
    let federation = Federation::start().await;
    let mut bundle = examples();
    bundle.files.push(v1::PolicyFile { path: "course.yaml".to_owned(), text: RESERVATIONS.to_owned() });
    let request = v1::ApplyPolicyRequest {
        bundle: Some(bundle),
        idempotency_key: "reserve".to_owned(),
        ..v1::ApplyPolicyRequest::default()
    };
    let applied = PolicyServiceClient::new(federation.user("admin")).apply_policy(request).await.unwrap().into_inner();
    assert!(applied.problems.is_empty(), "{:?}", applied.problems);

    let mut policies = PolicyServiceClient::new(federation.user("alice"));
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let page = Some(v1::PageRequest { size: 1, token });
        let query = v1::ListReservationsRequest { page, consistency: 0 };
        let reply = policies.list_reservations(query).await.unwrap().into_inner();
        seen.extend(reply.reservations);
        token = reply.page.unwrap().next_token;
        if token.is_empty() {
            break;
        }
    }
    let places: Vec<(&str, &str)> = seen.iter().map(|it| (it.name.as_str(), it.cluster.as_str())).collect();
    assert_eq!(places, [("course", "ncc-main"), ("course", "physics-farm")]);
    let first = &seen[0];
    assert_eq!((first.tenant.as_str(), first.gpu_class.as_str(), first.gpu_milli), ("poly-ml", "frontier", 8_000));
    assert_eq!((first.file.as_str(), first.line), ("course.yaml", 10));
    assert!(first.window_end_ms - first.window_start_ms == 3 * 3_600_000, "{first:?}");
    assert!(first.window_start_ms < now_ms() + WEEK_MS && first.window_end_ms > now_ms(), "{first:?}");
    // No cluster has joined, so nothing can be had.
    assert_eq!((first.used_milli, first.held_milli, first.short_milli), (0, 0, 8_000));

    let page = Some(v1::PageRequest { size: 0, token: "bm90".to_owned() });
    let wrong = policies.list_reservations(v1::ListReservationsRequest { page, consistency: 0 }).await;
    assert_refused(wrong, Code::InvalidArgument, "page.token", "bm90");
}

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}
