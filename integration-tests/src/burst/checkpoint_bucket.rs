//! A bucket for checkpoints on a volume of the origin's cluster: docs/examples/checkpoint/bucket.yaml, whose S3 server
//! offloaded pods reach through the fabric.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use comity_testkit::image::{self, Image};
use serde_json::json;

use super::{Burst, NAMESPACE};

/// The Secret with the bucket's credentials, and the name of the server's Service, of the bucket and of its claim.
pub const CHECKPOINT_SECRET: &str = "checkpoints";
const SERVER_IMAGE: &str = "comity.local/versitygw:1";
const ACCESS_KEY: &str = "train";
const SECRET_KEY: &str = "a-key-of-the-bucket-only";

/// Starts the server in the namespace of the workloads, with an empty bucket; returns the folder of its volume.
///
/// # Errors
/// When its image cannot be built, or its pod is not ready in time.
pub async fn add_checkpoint_bucket(burst: &Burst) -> Result<PathBuf> {
    let origin = &burst.clusters.origin;
    let dir = tempfile::tempdir()?;
    let (archive, program) = (dir.path().join("versitygw.tar"), burst.binaries.program("versitygw"));
    let image = Image { name: SERVER_IMAGE, program: &program, path: "/versitygw", user: "65532:65532", tmp: true };
    image::write(&image, &archive)?;
    origin.import_image(&archive).await?;

    // The test clusters have no storage class: this volume stands in for one that is made for the claim.
    let folder = origin.admin_kubeconfig_path().with_file_name("bucket");
    fs::create_dir(&folder)?;
    fs::set_permissions(&folder, Permissions::from_mode(0o777))?;
    let claim = json!({"name": CHECKPOINT_SECRET, "namespace": NAMESPACE});
    let items = json!([
        {
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": CHECKPOINT_SECRET, "namespace": NAMESPACE, "annotations": {"liqo.io/allow-reflection": "true"},
            },
            "stringData": {
                "AWS_ENDPOINT_URL": format!("http://{CHECKPOINT_SECRET}:9000"), "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            },
        },
        {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": CHECKPOINT_SECRET},
            "spec": {
                "capacity": {"storage": "100Gi"}, "accessModes": ["ReadWriteOnce"], "claimRef": claim,
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": folder, "type": "Directory"},
            },
        },
    ]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    origin.kubectl_with_input(&["apply", "-f", "-"], &list.to_string()).await?;
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/checkpoint/bucket.yaml");
    let server = fs::read_to_string(example)?;
    let image = server.lines().find_map(|line| line.trim().strip_prefix("image: ")).context("the server's image")?;
    origin.kubectl_with_input(&["apply", "-f", "-"], &server.replace(image, SERVER_IMAGE)).await?;
    let ready = ["-n", NAMESPACE, "rollout", "status", "deployment", CHECKPOINT_SECRET, "--timeout=100s"];
    origin.kubectl(&ready).await?;
    Ok(folder)
}
