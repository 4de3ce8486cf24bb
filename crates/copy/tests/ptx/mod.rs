//! Carries out PTX thread by thread, as far as the copy kernel uses it: no shared memory, no barrier, and no thread
//! that reads what another has written. What it does not know, and what a device would fault on, is an error.

use std::collections::HashMap;

/// A device runs for ever; this many steps of one thread are far more than any test needs.
const MAX_STEPS: usize = 1_000_000;

pub(crate) type Fault = String;

/// Memory that the kernel may reach, in ranges that do not touch.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    ranges: Vec<Range>,
}

#[derive(Clone)]
struct Range {
    start: u64,
    bytes: Vec<u8>,
    /// How often each byte was written.
    writes: Vec<u8>,
}

impl Memory {
    pub(crate) fn add(&mut self, start: u64, bytes: Vec<u8>) {
        self.ranges.push(Range { start, writes: vec![0; bytes.len()], bytes });
    }

    pub(crate) fn bytes(&self, range: usize) -> &[u8] {
        &self.ranges[range].bytes
    }

    /// Whether a byte was written twice: by two threads there is no telling which comes last.
    pub(crate) fn is_raced(&self) -> bool {
        self.ranges.iter().any(|range| range.writes.iter().any(|writes| *writes > 1))
    }

    fn find(&mut self, address: u64, bytes: usize) -> Result<(&mut Range, usize), Fault> {
        if !address.is_multiple_of(bytes as u64) {
            return Err(format!("misaligned access to {bytes} bytes at {address:#x}"));
        }
        let inside = |range: &&mut Range| {
            address >= range.start && address + bytes as u64 <= range.start + range.bytes.len() as u64
        };
        let range = self.ranges.iter_mut().find(inside);
        let range = range.ok_or_else(|| format!("illegal access to {bytes} bytes at {address:#x}"))?;
        let offset = (address - range.start) as usize;
        Ok((range, offset))
    }

    fn load(&mut self, address: u64, bytes: usize) -> Result<Vec<u8>, Fault> {
        let (range, offset) = self.find(address, bytes)?;
        Ok(range.bytes[offset..offset + bytes].to_vec())
    }

    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let (range, offset) = self.find(address, bytes.len())?;
        range.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        range.writes[offset..offset + bytes.len()].iter_mut().for_each(|writes| *writes += 1);
        Ok(())
    }
}

/// The body of a kernel.
pub(crate) struct Program {
    statements: Vec<Statement>,
    labels: HashMap<String, usize>,
}

struct Statement {
    /// Register that says whether it is carried out.
    guard: Option<String>,
    /// The operation and its modifiers.
    operation: Vec<String>,
    operands: Vec<String>,
}

impl Program {
    /// Reads the body of the only kernel of `text`.
    pub(crate) fn parse(text: &str) -> Program {
        let code: String =
            text.lines().map(|line| line.split("//").next().unwrap_or("").to_owned() + " ").collect();
        let body = &code[code.find('{').unwrap() + 1..code.rfind('}').unwrap()];
        let mut program = Program { statements: Vec::new(), labels: HashMap::new() };
        for statement in body.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
            let mut rest = statement;
            while let Some((label, after)) = rest.split_once(':') {
                program.labels.insert(label.trim().to_owned(), program.statements.len());
                rest = after.trim();
            }
            if !rest.starts_with(".reg") {
                program.statements.push(Statement::parse(rest));
            }
        }
        program
    }

    /// Runs a grid of `blocks` of `threads`.
    pub(crate) fn run(
        &self,
        (blocks, threads): (u64, u64),
        parameters: &[(&str, u64)],
        memory: &mut Memory,
    ) -> Result<(), Fault> {
        for block in 0..blocks {
            for thread in 0..threads {
                let fixed =
                    [("%ctaid.x", block), ("%nctaid.x", blocks), ("%tid.x", thread), ("%ntid.x", threads)];
                let named = fixed.iter().chain(parameters).map(|(name, value)| ((*name).to_owned(), *value));
                Thread { values: named.collect(), memory }.run(self)?;
            }
        }
        Ok(())
    }
}

impl Statement {
    fn parse(text: &str) -> Statement {
        let (guard, text) = match text.strip_prefix('@') {
            Some(guarded) => {
                let (guard, text) = guarded.split_once(' ').unwrap();
                (Some(guard.to_owned()), text.trim())
            }
            None => (None, text),
        };
        let (operation, operands) = text.split_once(' ').unwrap_or((text, ""));
        // Registers of one vector stay together.
        let mut depth = 0;
        let split = |c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        };
        Statement {
            guard,
            operation: operation.split('.').map(str::to_owned).collect(),
            operands: operands.split(split).map(|operand| operand.trim().to_owned()).collect(),
        }
    }
}

struct Thread<'a> {
    values: HashMap<String, u64>,
    memory: &'a mut Memory,
}

impl Thread<'_> {
    fn run(mut self, program: &Program) -> Result<(), Fault> {
        let mut at = 0;
        for _ in 0..MAX_STEPS {
            let statement = &program.statements[at];
            at += 1;
            if let Some(guard) = &statement.guard
                && self.value(guard)? == 0
            {
                continue;
            }
            match statement.operation[0].as_str() {
                "ret" => return Ok(()),
                "bra" => at = program.labels[&statement.operands[0]],
                _ => self.step(statement)?,
            }
        }
        Err("a thread does not end".to_owned())
    }

    fn value(&self, operand: &str) -> Result<u64, Fault> {
        if let Some(hex) = operand.strip_prefix("0x") {
            return u64::from_str_radix(hex, 16).map_err(|error| format!("{operand}: {error}"));
        }
        let known = operand.parse().ok().or_else(|| self.values.get(operand).copied());
        known.ok_or_else(|| format!("{operand} is read before it is written"))
    }

    /// What a memory operand points to.
    fn address(&self, operand: &str) -> Result<u64, Fault> {
        let inner = operand.trim_matches(['[', ']']);
        let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        Ok(self.value(base)? + self.value(offset)?)
    }

    fn step(&mut self, statement: &Statement) -> Result<(), Fault> {
        let operation: Vec<&str> = statement.operation.iter().map(String::as_str).collect();
        let kind = operation[operation.len() - 1];
        let bits: u32 = kind[1..].parse().map_err(|_| format!("{kind} is no type"))?;
        let to = &statement.operands[0];
        match operation[..] {
            ["ld", "param", _] => {
                let name = statement.operands[1].trim_matches(['[', ']']);
                self.put(to, self.value(name)?, bits);
            }
            ["ld", "global", ..] => {
                let registers: Vec<_> = to.trim_matches(['{', '}']).split(", ").collect();
                let width = bits as usize / 8;
                let loaded =
                    self.memory.load(self.address(&statement.operands[1])?, width * registers.len())?;
                for (register, bytes) in registers.iter().zip(loaded.chunks(width)) {
                    let value = bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
                    self.put(register, value, bits);
                }
            }
            ["st", "global", ..] => {
                let mut bytes = Vec::new();
                for register in statement.operands[1].trim_matches(['{', '}']).split(", ") {
                    bytes.extend(&self.value(register)?.to_le_bytes()[..bits as usize / 8]);
                }
                self.memory.store(self.address(to)?, &bytes)?;
            }
            _ => {
                let from: Result<Vec<u64>, Fault> =
                    statement.operands[1..].iter().map(|operand| self.value(operand)).collect();
                let (value, bits) = compute(&operation, &from?, bits)?;
                self.put(to, value, bits);
            }
        }
        Ok(())
    }

    fn put(&mut self, register: &str, value: u64, bits: u32) {
        self.values.insert(register.to_owned(), if bits == 64 { value } else { value & ((1 << bits) - 1) });
    }
}

/// The result, and how many bits of it count.
fn compute(operation: &[&str], from: &[u64], bits: u32) -> Result<(u64, u32), Fault> {
    Ok(match (operation, from) {
        (["mov" | "cvta", ..], [a]) => (*a, bits),
        (["cvt", "u32", "u64"], [a]) => (*a, 32),
        (["cvt", "u64", "u32"], [a]) => (*a, 64),
        (["add", _], [a, b]) => (a.wrapping_add(*b), bits),
        (["sub", _], [a, b]) => (a.wrapping_sub(*b), bits),
        (["min", _], [a, b]) => (*a.min(b), bits),
        (["div", _], [a, b]) => (a.checked_div(*b).ok_or("division by zero")?, bits),
        (["and", _], [a, b]) => (a & b, bits),
        (["or", _], [a, b]) => (a | b, bits),
        (["shl", _], [a, b]) => (a << b, bits),
        (["shr", _], [a, b]) => (a >> b, bits),
        (["mul", "lo", _], [a, b]) => (a.wrapping_mul(*b), bits),
        (["mul", "wide", "u32"], [a, b]) => (a * b, 64),
        (["mad", "lo", _], [a, b, c]) => (a.wrapping_mul(*b).wrapping_add(*c), bits),
        (["mad", "wide", "u32"], [a, b, c]) => (a * b + c, 64),
        (["setp", "ge", _], [a, b]) => (u64::from(a >= b), 1),
        (["setp", "gt", _], [a, b]) => (u64::from(a > b), 1),
        (["setp", "le", _], [a, b]) => (u64::from(a <= b), 1),
        (["setp", "ne", _], [a, b]) => (u64::from(a != b), 1),
        _ => return Err(format!("{} is not known here", operation.join("."))),
    })
}
