#!/usr/bin/env bash
# usage: certificates.sh FOLDER [HOST ...]
# Writes a certificate authority and the SuperLink's certificate for HOST ... (names or addresses;
# default: localhost and 127.0.0.1) to FOLDER. ca.crt goes to every device; ca.key and superlink.key
# stay where they are. A second call keeps the authority and renews the certificate.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
folder=$1
shift
[ $# -ge 1 ] || set -- localhost 127.0.0.1
umask 077
mkdir -p "$folder"
cd "$folder"
names=
for host in "$@"; do
    case $host in
        *:* | *[0-9].[0-9]*.[0-9]*.[0-9]*) kind=IP ;;
        *) kind=DNS ;;
    esac
    names=${names:+$names,}$kind:$host
done
if [ ! -e ca.key ]; then
    openssl ecparam -name secp384r1 -genkey -noout -out ca.key
    openssl req -new -x509 -key ca.key -sha384 -days 1825 -subj "/CN=fl-app authority" \
        -addext keyUsage=critical,keyCertSign,cRLSign -out ca.crt
fi
openssl ecparam -name secp384r1 -genkey -noout -out superlink.key
openssl req -new -key superlink.key -subj "/CN=fl-app SuperLink" -out superlink.csr
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\nbasicConstraints=critical,CA:FALSE\n' \
    "$names" > superlink.ext
openssl x509 -req -in superlink.csr -CA ca.crt -CAkey ca.key -CAcreateserial -sha384 -days 365 \
    -extfile superlink.ext -out superlink.crt 2> /dev/null
rm -f superlink.csr superlink.ext
chmod 644 ca.crt superlink.crt
echo "certificate for $names in $PWD"
