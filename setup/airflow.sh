#!/bin/bash
# Start Airflow (scheduler, DAG processor, triggerer, API server with UI) on SQLite in var/airflow.
set -euo pipefail
port=${AIRFLOW_PORT:-8080}
log=$HEADRACE_HOME/var/log/airflow.log
passwords=$AIRFLOW_HOME/simple_auth_manager_passwords.json.generated
mkdir -p "$AIRFLOW_HOME" "$(dirname "$log")"

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

if answers; then
    echo "Port $port is in use. AIRFLOW_PORT=8081 make airflow takes another." >&2
    exit 1
fi
export AIRFLOW__API__PORT=$port AIRFLOW__API__HOST=127.0.0.1
export AIRFLOW__API__BASE_URL=http://127.0.0.1:$port
export AIRFLOW__CORE__EXECUTION_API_SERVER_URL=http://127.0.0.1:$port/execution/

echo "Starting Airflow (half a minute; a minute the first time). Its log is ${log#"$HEADRACE_HOME"/}. Ctrl-C ends it."

# Airflow itself stays in the foreground: Ctrl-C must reach it, so that it ends its four services.
server=$$
{
    until answers && [ -s "$passwords" ]; do
        sleep 1
        kill -0 $server 2>/dev/null || { tail -n 30 "$log" >&2; exit 1; }
    done
    echo "UI        http://127.0.0.1:$port"
    echo "Password  of user admin: in ${passwords#"$HEADRACE_HOME"/}"
} &

exec airflow standalone >"$log" 2>&1
