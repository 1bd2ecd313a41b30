//! A bucket for checkpoints in the origin's cluster: the S3 server versitygw, which offloaded pods reach through the
//! fabric.

use anyhow::Result;
use comity_testkit::image::{self, Image};
use serde_json::json;

use super::{Burst, NAMESPACE};

/// The Secret with the bucket's credentials, and the name of the server's Service and of the bucket.
pub const CHECKPOINT_SECRET: &str = "checkpoints";
const SERVER_IMAGE: &str = "comity.local/versitygw:1";
const ACCESS_KEY: &str = "train";
const SECRET_KEY: &str = "a-key-of-the-bucket-only";

/// Starts the server in the namespace of the workloads, with an empty bucket.
///
/// # Errors
/// When its image cannot be built, or its pod is not ready in time.
pub async fn add_checkpoint_bucket(burst: &Burst) -> Result<()> {
    let origin = &burst.clusters.origin;
    let dir = tempfile::tempdir()?;
    let (archive, program) = (dir.path().join("versitygw.tar"), burst.binaries.program("versitygw"));
    let image = Image { name: SERVER_IMAGE, program: &program, path: "/versitygw", user: "65532:65532", tmp: true };
    image::write(&image, &archive)?;
    origin.import_image(&archive).await?;

    let metadata = json!({"name": CHECKPOINT_SECRET, "namespace": NAMESPACE, "labels": {"app": CHECKPOINT_SECRET}});
    let variable = |name: &str, key: &str| {
        let secret = json!({"name": CHECKPOINT_SECRET, "key": key});
        json!({"name": name, "valueFrom": {"secretKeyRef": secret}})
    };
    let items = json!([
        {
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata,
            "stringData": {
                "AWS_ENDPOINT_URL": format!("http://{CHECKPOINT_SECRET}:9000"), "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            },
        },
        {
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"selector": {"app": CHECKPOINT_SECRET}, "ports": [{"port": 9000}]},
        },
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {
                "volumes": [{"name": "data", "emptyDir": {}}, {"name": "bucket", "emptyDir": {}}],
                "containers": [{
                    "name": "server", "image": SERVER_IMAGE, "imagePullPolicy": "IfNotPresent",
                    // Each folder of /data is a bucket.
                    "args": ["--port", ":9000", "posix", "--nometa", "/data"],
                    "env": [
                        variable("ROOT_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
                        variable("ROOT_SECRET_KEY", "AWS_SECRET_ACCESS_KEY"),
                    ],
                    "volumeMounts": [
                        {"name": "data", "mountPath": "/data"},
                        {"name": "bucket", "mountPath": format!("/data/{CHECKPOINT_SECRET}")},
                    ],
                    "readinessProbe": {"tcpSocket": {"port": 9000}, "periodSeconds": 1},
                }],
            },
        },
    ]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    origin.kubectl_with_input(&["apply", "-f", "-"], &list.to_string()).await?;
    let ready = ["-n", NAMESPACE, "wait", "--for=condition=Ready", "pod", CHECKPOINT_SECRET, "--timeout=100s"];
    origin.kubectl(&ready).await?;
    Ok(())
}
