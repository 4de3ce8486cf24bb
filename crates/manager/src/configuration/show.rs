//! `config show`: every value that a manager would use now.

use super::{Configuration, setting};
use crate::Amount;
use crate::settings::{self, SPARE_BYTES, SettingsError};
use bytesize::ByteSize;
use clap::ValueEnum;
use orbitkv_core::Config;
use orbitkv_shm::AvailableMemory;
use serde_json::{Value, json};

struct Row {
    key: &'static str,
    value: Value,
    unit: &'static str,
    origin: String,
    /// How the value was computed, where it was not written as it is.
    derived: Option<String>,
}

/// The configuration as a table, or as JSON, with a line end.
///
/// # Errors
/// The value that would keep a manager from starting.
pub(crate) fn show(
    configuration: &Configuration,
    memory: AvailableMemory,
    json: bool,
) -> Result<String, SettingsError> {
    let config = settings::config(configuration, memory)?;
    let rows: Vec<Row> = setting::ALL
        .iter()
        .map(|setting| {
            let (value, derived) = value_of(setting.key, configuration, &config, memory);
            let origin = configuration.origin(setting.key).to_string();
            Row { key: setting.key, value, unit: setting.unit, origin, derived }
        })
        .collect();
    Ok(if json { as_json(&rows, configuration, memory) } else { as_table(&rows) })
}

fn value_of(
    key: &str,
    configuration: &Configuration,
    config: &Config,
    memory: AvailableMemory,
) -> (Value, Option<String>) {
    let args = &configuration.args;
    let of_pool = |amount: Amount| share(amount).map(|percent| format!("{percent}% of the pool"));
    match key {
        "pool_size" => {
            let usable_bytes = memory.usable_bytes();
            let derived = share(args.pool_size).map(|percent| {
                format!("{percent}% of {usable_bytes} bytes of available memory, in whole segments")
            });
            (config.pool_bytes.into(), derived)
        }
        "socket" => {
            let (path, derived) = settings::socket(args);
            (path.to_string_lossy().into(), derived.map(str::to_owned))
        }
        "http_addr" => (args.http_addr.to_string().into(), None),
        "query_budget" => (config.query_budget_bytes.into(), of_pool(args.query_budget)),
        "query_instance_budget" => {
            let derived = args.query_instance_budget.map_or(Some("query_budget".to_owned()), of_pool);
            (config.query_instance_budget_bytes.into(), derived)
        }
        "query_read_batch" => (config.read_batch_bytes.into(), args.query_read_batch.0.and_then(of_pool)),
        "query_read_max_batches" => (args.query_read_max_batches.into(), None),
        "query_read_timeout_ms" => (args.query_read_timeout_ms.into(), None),
        "ssd_cache_path" => match &args.ssd_cache_path[..] {
            [] => (Value::Null, None),
            paths => (paths.iter().map(|path| path.to_string_lossy()).collect(), None),
        },
        "ssd_cache_capacity" => {
            let in_all = || format!("{} directories, in equal parts", args.ssd_cache_path.len());
            let several = (args.ssd_cache_path.len() > 1).then(in_all);
            args.ssd_cache_capacity.map_or((Value::Null, None), |amount| of_disk(amount, several))
        }
        "ssd_min_free" => args.ssd_min_free.0.map_or((0.into(), None), |amount| of_disk(amount, None)),
        "ssd_write_policy" => (word(&args.ssd_write_policy), None),
        "ssd_write_budget" => {
            (args.ssd_write_budget.map_or(Value::Null, |rate| rate.to_string().into()), None)
        }
        "ssd_io" => (word(&args.ssd_io), None),
        "ssd_segment_size" => match args.ssd_segment_size {
            Some(amount) => of_disk(amount, None),
            None => (Value::Null, Some("a 64th of a directory's capacity, 64 MiB to 1 GiB".to_owned())),
        },
        "memory_tier_size" => {
            (settings::memory_tier(args, config).bytes.into(), args.memory_tier_size.0.and_then(of_pool))
        }
        "memory_tier_delay_ms" => (args.memory_tier_delay_ms.into(), None),
        "memory_tier_depth" => (args.memory_tier_depth.into(), None),
        "scrub_rate" => (args.scrub_rate.0.map_or(0.into(), |rate| rate.to_string().into()), None),
        "segment_size" => {
            let eighth = "an eighth of the pool, 64 MiB at most".to_owned();
            (config.segment_bytes.into(), args.segment_size.map_or(Some(eighth), of_pool))
        }
        "ready_file" => {
            (args.ready_file.as_ref().map_or(Value::Null, |path| path.to_string_lossy().into()), None)
        }
        "log_format" => (word(&args.log_format), None),
        "log_level" => (word(&args.log_level), None),
        _ => (Value::Null, None),
    }
}

/// A share stays one: directories may lie on several file systems.
fn of_disk(amount: Amount, derived: Option<String>) -> (Value, Option<String>) {
    match amount {
        Amount::Bytes(bytes) => (bytes.into(), derived),
        Amount::Percent(percent) => (format!("{percent}%").into(), Some("of each file system".to_owned())),
    }
}

fn share(amount: Amount) -> Option<u8> {
    match amount {
        Amount::Percent(percent) => Some(percent),
        Amount::Bytes(_) => None,
    }
}

fn word(value: &impl ValueEnum) -> Value {
    value.to_possible_value().map_or(Value::Null, |word| word.get_name().into())
}

fn as_json(rows: &[Row], configuration: &Configuration, memory: AvailableMemory) -> String {
    let settings: serde_json::Map<_, _> = rows
        .iter()
        .map(|row| {
            let value = json!({
                "value": row.value,
                "unit": if row.unit.is_empty() { Value::Null } else { row.unit.into() },
                "origin": configuration.origin(row.key),
                "derived_from": row.derived,
            });
            (row.key.to_owned(), value)
        })
        .collect();
    let memory = json!({
        "host_available_bytes": memory.host_bytes,
        "cgroup_available_bytes": memory.cgroup_bytes,
        "available_bytes": memory.usable_bytes(),
        "kept_free_bytes": SPARE_BYTES,
    });
    format!("{:#}\n", json!({ "settings": settings, "memory": memory }))
}

/// Columns are as wide as their widest cell; the last one is not padded.
fn as_table(rows: &[Row]) -> String {
    let head = ["key", "value", "unit", "origin"].map(str::to_owned);
    let cells: Vec<[String; 4]> = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (key_width, value_width, unit_width) = (width(0), width(1), width(2));
    cells
        .iter()
        .map(|[key, value, unit, origin]| {
            format!("{key:key_width$}  {value:value_width$}  {unit:unit_width$}  {origin}\n")
        })
        .collect()
}

fn cells(row: &Row) -> [String; 4] {
    let value = match &row.value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(texts) => texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
        // Exact for scripts and limits, short for people.
        number => number.as_u64().filter(|_| row.unit == "bytes").map_or_else(
            || number.to_string(),
            |bytes| format!("{bytes} ({})", ByteSize(bytes).display().iec()),
        ),
    };
    let unit = if row.unit.is_empty() { "-" } else { row.unit };
    let origin = match &row.derived {
        None => row.origin.clone(),
        Some(derived) => format!("{}: {derived}", row.origin),
    };
    [row.key.to_owned(), value, unit.to_owned(), origin]
}
