//! What both sides of an instance tell the manager.

use crate::args::int;
use crate::guard::{Guard, OrbitKVError};
use orbitkv_client::GroupSpec;
use pyo3::prelude::*;
use pyo3::types::PyDict;

const GROUP_KEYS: [&str; 5] = ["group", "page_bytes", "block_tokens", "shard_count", "rule"];

/// A checked registration.
#[pyclass(frozen, module = "orbitkv._native")]
pub(crate) struct Registration {
    pub(crate) inner: orbitkv_client::Registration,
}

#[pymethods]
impl Registration {
    #[new]
    #[pyo3(signature = (*, socket, engine, engine_version, model, instance, namespace, world_size, groups, hash_tokens = 0))]
    #[allow(clippy::too_many_arguments)] // Keyword arguments of the Python side.
    fn new(
        socket: &str,
        engine: String,
        engine_version: String,
        model: String,
        instance: String,
        namespace: String,
        world_size: i64,
        groups: Vec<Bound<'_, PyDict>>,
        hash_tokens: i64,
    ) -> PyResult<Self> {
        let inner = orbitkv_client::Registration {
            socket: socket.into(),
            engine,
            engine_version,
            model,
            instance,
            namespace,
            world_size: int("world_size", world_size)?,
            groups: groups.iter().map(group).collect::<PyResult<_>>()?,
            hash_tokens: int("hash_tokens", hash_tokens)?,
        };
        Guard::default().look(|| inner.check())?;
        Ok(Self { inner })
    }
}

fn group(dict: &Bound<'_, PyDict>) -> PyResult<GroupSpec> {
    for key in dict.keys() {
        let key = key.str()?;
        if !GROUP_KEYS.contains(&key.to_str()?) {
            let text = format!("group has an unknown key {key}; known are {}", GROUP_KEYS.join(", "));
            return Err(OrbitKVError::new_err(text));
        }
    }
    let get = |key: &str| {
        dict.get_item(key)?.ok_or_else(|| OrbitKVError::new_err(format!("group lacks the key {key:?}")))
    };
    Ok(GroupSpec {
        group: int("group", get("group")?.extract()?)?,
        page_bytes: int("page_bytes", get("page_bytes")?.extract()?)?,
        block_tokens: int("block_tokens", get("block_tokens")?.extract()?)?,
        shard_count: int("shard_count", get("shard_count")?.extract()?)?,
        rule: get("rule")?.extract()?,
    })
}
