package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// Certificates are an authority of a test's own, and one certificate that it has signed: for
// 127.0.0.1 and the user postgres. Servers and clients show the same one. The fields are paths of
// PEM files.
type Certificates struct{ CA, Cert, Key string }

// NewCertificates makes an authority, whose certificates are good for an hour.
func NewCertificates(t testing.TB) *Certificates {
	t.Helper()
	c := certificatesIn(t.TempDir())
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fencedb test authority"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	both := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "postgres"},
		IPAddresses: []net.IP{net.ParseIP(loopback)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore:   authority.NotBefore, NotAfter: authority.NotAfter,
	}
	caKey := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	ca := must(x509.CreateCertificate(rand.Reader, authority, authority, caKey.Public(), caKey))(t)
	cert := must(x509.CreateCertificate(rand.Reader, both, authority, key.Public(), caKey))(t)
	for path, block := range map[string]pem.Block{
		c.CA:   {Type: "CERTIFICATE", Bytes: ca},
		c.Cert: {Type: "CERTIFICATE", Bytes: cert},
		c.Key:  {Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))(t)},
	} {
		check(t, os.WriteFile(path, pem.EncodeToMemory(&block), 0o600))
	}
	return c
}

func certificatesIn(dir string) *Certificates {
	return &Certificates{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
}

// Query is what a client adds to a URL to verify the server and to show its own certificate.
func (c *Certificates) Query() url.Values {
	return url.Values{"sslrootcert": {c.CA}, "sslcert": {c.Cert}, "sslkey": {c.Key}}
}

// Config is how a client verifies the server and shows its own certificate.
func (c *Certificates) Config(t testing.TB) *tls.Config {
	t.Helper()
	return must(c.config())(t)
}

func (c *Certificates) config() (*tls.Config, error) {
	if c == nil {
		return nil, nil
	}
	ca, err := os.ReadFile(c.CA)
	own, err2 := tls.LoadX509KeyPair(c.Cert, c.Key)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}}, errors.Join(err, err2)
}

// authorityFile is the argument of redis-server by which a node knows that it is to speak TLS.
const authorityFile = "--tls-ca-cert-file"

// Redis are the arguments with which [OwnRedis], [Sentinel] and [Cluster] speak TLS only, to
// clients that show a certificate of the authority.
func (c *Certificates) Redis() []string {
	if c == nil {
		return nil
	}
	return []string{
		authorityFile, c.CA, "--tls-cert-file", c.Cert, "--tls-key-file", c.Key,
		"--tls-auth-clients", "yes", "--tls-replication", "yes", "--tls-cluster", "yes",
	}
}

// certificatesAmong are those in the arguments of a redis-server, or nil.
func certificatesAmong(args []string) *Certificates {
	at := slices.Index(args, authorityFile)
	if at < 0 {
		return nil
	}
	return certificatesIn(filepath.Dir(args[at+1]))
}

// RequireTLS restarts the server. From then on it lets in only clients with TLS and a certificate
// of the authority that names their role. URL has what they need.
func (s *PostgresServer) RequireTLS(c *Certificates) {
	s.t.Helper()
	for name, path := range map[string]string{"ca.crt": c.CA, "server.crt": c.Cert, "server.key": c.Key} {
		s.must("give a certificate to", s.cluster.put(name, must(os.ReadFile(path))(s.t)))
	}
	s.must("configure", s.cluster.put("pg_hba.conf", []byte("hostssl all all all trust clientcert=verify-full\n")))
	s.cluster.config = append(slices.Clip(s.cluster.config), "ssl=on", "ssl_ca_file=ca.crt")
	query := c.Query()
	query.Set("sslmode", "verify-full")
	s.cluster.security = query.Encode()
	s.Restart()
}
