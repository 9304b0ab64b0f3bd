#!/bin/bash
# Start Airflow (scheduler, DAG processor, triggerer, API server with UI) on SQLite in var/airflow.
set -euo pipefail
port=${AIRFLOW_PORT:-8080}
log=$HEADRACE_HOME/var/log/airflow.log
passwords=$AIRFLOW_HOME/simple_auth_manager_passwords.json.generated
mkdir -p "$AIRFLOW_HOME" "$(dirname "$log")"

if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    echo "Port $port is in use. AIRFLOW_PORT=8081 make airflow takes another." >&2
    exit 1
fi
export AIRFLOW__API__PORT=$port AIRFLOW__API__HOST=127.0.0.1
export AIRFLOW__API__BASE_URL=http://127.0.0.1:$port
export AIRFLOW__CORE__EXECUTION_API_SERVER_URL=http://127.0.0.1:$port/execution/

airflow standalone >"$log" 2>&1 &
server=$!
# The children of standalone are in its process group only if it is ended in an orderly way.
trap 'kill -INT $server 2>/dev/null; wait $server 2>/dev/null; exit 0' INT TERM

echo "Starting Airflow; the log is ${log#"$HEADRACE_HOME"/}"
for _ in $(seq 120); do
    kill -0 $server 2>/dev/null || { tail -n 30 "$log"; echo "Airflow ended; see above." >&2; exit 1; }
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && [ -s "$passwords" ] && break
    sleep 1
done
echo "UI        http://127.0.0.1:$port"
echo "Password  of user admin: in ${passwords#"$HEADRACE_HOME"/}"
echo "Ctrl-C ends it."
wait $server
